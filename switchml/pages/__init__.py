"""Pages of HTML: one style, one header, charts that a browser draws. A page is one file with everything in it."""
