"""Reading and writing of files: atomic writes, checksums, files with a base, safe opening below a folder."""
