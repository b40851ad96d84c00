"""HTML pages: common style and header, charts drawn by the browser. A page is a single self-contained file."""
