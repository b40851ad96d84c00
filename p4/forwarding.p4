// An Ethernet switch that learns by itself. A cell of `stations` holds the last source address that hashed to it, and
// its port; where another address has taken the cell, a frame is flooded, which is slower but never wrong.

const bit<16> FLOOD = 1; // the multicast group of all ports
const bit<32> STATIONS = 4096;

control Forwarding(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    // Port + 1, then the MAC address: Thrift shows numbers of 63 bits, and half of all MAC addresses have the top one.
    @name(".stations") register<bit<64>>(STATIONS) stations;

    apply {
        bit<32> cell;
        bit<64> known = 0;
        if (hdr.ethernet.src[40:40] == 0) {
            hash(cell, HashAlgorithm.crc16, 32w0, { hdr.ethernet.src }, STATIONS);
            stations.write(cell, ((bit<16>)sm.ingress_port + 1) ++ hdr.ethernet.src);
        }
        if (hdr.ethernet.dst[40:40] == 0) {
            hash(cell, HashAlgorithm.crc16, 32w0, { hdr.ethernet.dst }, STATIONS);
            stations.read(known, cell);
        }
        if (known[63:48] == 0 || known[47:0] != hdr.ethernet.dst) {
            meta.is_flooded = 1;
            sm.mcast_grp = FLOOD;
        } else if (known[56:48] - 1 == sm.ingress_port) {
            mark_to_drop(sm);
        } else {
            sm.egress_spec = known[56:48] - 1;
        }
    }
}
