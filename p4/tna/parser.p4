// Which headers a packet has: in its first pass those of the wire, in later ones what it takes along and the next 64
// lanes. Lanes that no pass has reached are payload to the parser, and stay behind all headers.

parser IngressParser(packet_in packet, out packet_t hdr, out known_t known, out ingress_intrinsic_metadata_t ig) {
    Checksum() ipv4_checksum;
    value_set<PortId_t>(64) loopbacks; // the ports that lead from one pass to the next

    state start {
        packet.extract(ig);
        packet.advance(PORT_METADATA_SIZE);
        known.is_new = 0;
        known.is_summed = 0;
        known.is_well_formed = 0;
        known.is_damaged = false;
        known.step = 0;
        known.pipe = NO_PIPE;
        known.cell = 0;
        transition select(ig.ingress_port) {
            loopbacks: next_pass;
            default: first_pass;
        }
    }
    state next_pass {
        packet.extract(hdr.pass);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.switchml);
        known.is_summed = 1;
        known.step = hdr.pass.step;
        transition select(hdr.pass.place) {
            1: lanes;
            2: lanes;
            3: lanes;
            4: lanes;
            default: accept;
        }
    }
    state lanes {
        packet.extract(hdr.left);
        packet.extract(hdr.right);
        transition accept;
    }

    state first_pass {
        known.is_new = 1;
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_IPV4: ipv4;
            TYPE_ARP: arp;
            default: accept;
        }
    }
    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        known.is_damaged = ipv4_checksum.verify();
        transition select(hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.protocol) {
            (5, 0 &&& 1, 0, IP_ICMP): icmp;
            (5, 0 &&& 1, 0, IP_UDP): udp;
            default: accept;
        }
    }
    state icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst, hdr.udp.length) {
            (PORTS &&& PORTS_MASK, LENGTH_256): switchml_256;
            (PORTS &&& PORTS_MASK, LENGTH_1024): switchml_1024;
            default: accept;
        }
    }
    state switchml_256 {
        packet.extract(hdr.switchml);
        transition select(hdr.switchml.kind, hdr.switchml.size) {
            (CONTRIBUTION, SIZE_256): well_formed;
            default: accept;
        }
    }
    state switchml_1024 {
        packet.extract(hdr.switchml);
        transition select(hdr.switchml.kind, hdr.switchml.size) {
            (CONTRIBUTION, SIZE_1024): well_formed;
            default: accept;
        }
    }
    state well_formed {
        known.is_well_formed = 1;
        transition accept;
    }
}

control IngressDeparser(packet_out packet, inout packet_t hdr, in known_t known,
                        in ingress_intrinsic_metadata_for_deparser_t ig_dprsr) {
    apply {
        packet.emit(hdr);
    }
}

parser EgressParser(packet_in packet, out packet_t hdr, out nothing_t known, out egress_intrinsic_metadata_t eg) {
    state start {
        packet.extract(eg);
        packet.extract(hdr.pass);
        transition select(hdr.pass.place) {
            PLACE_FLOODED: accept;
            default: reply;
        }
    }
    state reply {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        transition accept;
    }
}

control EgressDeparser(packet_out packet, inout packet_t hdr, in nothing_t known,
                       in egress_intrinsic_metadata_for_deparser_t eg_dprsr) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags,
                hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst
            });
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
    }
}
