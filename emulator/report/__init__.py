"""Shows what a replay found: tables for the terminal, a self-contained HTML page, a timeline for Perfetto."""
