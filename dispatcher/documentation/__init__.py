"""The documentation site that `make docs` builds, served at ``/documentation/``."""
