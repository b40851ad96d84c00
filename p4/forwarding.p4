// An Ethernet switch that learns by itself. A cell of `stations` holds the last source address that hashed to it, and
// its port; where another address has taken the cell, a frame is flooded, which is slower but never wrong.

const bit<16> FLOOD = 1; // the multicast group of all ports
const bit<32> STATIONS = 4096;

control Forwarding(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    @name(".stations") register<bit<64>>(STATIONS) stations; // a MAC address, then its port + 1

    apply {
        bit<32> cell;
        bit<64> known = 0;
        if (hdr.ethernet.src[40:40] == 0) {
            hash(cell, HashAlgorithm.crc16, 32w0, { hdr.ethernet.src }, STATIONS);
            stations.write(cell, hdr.ethernet.src ++ ((bit<16>)sm.ingress_port + 1));
        }
        if (hdr.ethernet.dst[40:40] == 0) {
            hash(cell, HashAlgorithm.crc16, 32w0, { hdr.ethernet.dst }, STATIONS);
            stations.read(known, cell);
        }
        if (known[15:0] == 0 || known[63:16] != hdr.ethernet.dst) {
            meta.is_flooded = 1;
            sm.mcast_grp = FLOOD;
        } else if (known[8:0] - 1 == sm.ingress_port) {
            mark_to_drop(sm);
        } else {
            sm.egress_spec = known[8:0] - 1;
        }
    }
}
