"""Users' metadata tables (CSV, TSV, Parquet): locators, files, types, and rows in bounded memory."""
