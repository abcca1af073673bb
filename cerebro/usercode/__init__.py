"""User code: checks, fingerprints, and transport to the processes that run it.

`checks.py` validates a spec before anything runs. `encoding.py` serialises a spec and restores it in a worker's child
process; `named.py` does it for classes named in an experiment file. `fingerprint.py` hashes the behaviour of user code,
so that equal code shares data sets. `archive/` packs and safely unpacks folders of user files. `fitted.py` stores the
result of `ETLSpec.fit`, and `in_process.py` runs user code in the user's own process.
"""
