"""Jobs on P4 switches: drivers that program a switch, and the data planes built on them."""
