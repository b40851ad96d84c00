"""`switchml reproduce`: papers' claims compared with this project's results. Each claim is a TOML file in `claims/`."""
