"""The state of a running switch: tables, registers, counters, meters, profiles, multicast groups, digests."""
