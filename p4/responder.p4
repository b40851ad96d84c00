// The switch as a host: it answers ARP requests for its addresses and ICMP echo requests to them. Other packets to them
// that are not for the aggregator have nobody to read them, and are dropped.

control Responder(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action answer_arp() {
        hdr.arp.operation = 2;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target = hdr.arp.sender;
        hdr.arp.sender_mac = meta.mac;
        hdr.arp.sender = meta.target;
    }
    action answer_echo() {
        // The header's first word falls by 0x0800, so the ones' complement of the sum grows by it.
        bit<17> sum = (bit<17>)hdr.icmp.checksum + 0x0800;
        hdr.icmp.checksum = sum[15:0] + (bit<16>)sum[16:16];
        hdr.icmp.type = 0;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = meta.target;
        hdr.ipv4.ttl = 64;
        meta.is_rewritten = 1;
    }
    action send_back() {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.mac;
        sm.egress_spec = sm.ingress_port;
    }
    apply {
        if (hdr.arp.isValid() && hdr.arp.hardware == 1 && hdr.arp.protocol == TYPE_IPV4 && hdr.arp.operation == 1) {
            answer_arp();
            send_back();
        } else if (hdr.icmp.isValid() && hdr.icmp.type == 8 && hdr.icmp.code == 0) {
            answer_echo();
            send_back();
        } else {
            mark_to_drop(sm);
        }
    }
}
