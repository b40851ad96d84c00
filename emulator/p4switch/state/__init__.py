"""What a running switch holds: tables, registers, counters, meters, profiles, multicast groups."""
