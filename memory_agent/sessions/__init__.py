"""Past sessions of coding agents and chats: finds their files, reads their formats, and makes events of them.

One file per format; `finding` knows where they lie and which is which, `history` makes events of what they say.
"""
