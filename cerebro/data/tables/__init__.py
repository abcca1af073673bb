"""Users' tables: metadata files as typed columns, in bounded memory."""
