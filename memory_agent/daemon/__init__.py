"""The service that hosts the memories of many users in several processes.

An event passes through `dispatcher`, `lane`, `hosts` and `host`; a request enters at `service` and joins this path at
`hosts`. Read `components` first. Import only the modules you need: `raylet` imports Ray, which takes a second.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a learner's small matrices: 0.1 s with 1 thread, 0.4 s with 2
