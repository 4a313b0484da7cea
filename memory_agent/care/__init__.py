"""Looking after a data folder: checked, built anew, compacted, copied, carried elsewhere.

`findings` is what a check found; `records_check`, `derived_check` and `checkup` check one store; `relay.checkup` does
the journal. Whatever only reads takes snapshots of the files, which their owner may be writing meanwhile: LMDB lets
other processes read, so a daemon need not be asked.
"""
