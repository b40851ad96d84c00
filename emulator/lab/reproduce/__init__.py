"""`switchml reproduce`: claims of papers beside what this project finds. One TOML file a claim, in `claims/`."""
