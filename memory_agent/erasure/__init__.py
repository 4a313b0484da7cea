"""Complete erasure: removes every trace from all files, resumes after an interruption, and returns a receipt.

Read `request` first, then `eraser`. Import the modules directly, so that clients can import `request` without loading
numpy and usearch.
"""
