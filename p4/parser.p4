// Which headers a packet has. Packets for an aggregator are recognized by UDP port and length; anything else, such as
// IPv4 with options or in fragments, goes no further than the headers that forwarding needs.

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_IPV4: ipv4;
            TYPE_ARP: arp;
            default: accept;
        }
    }
    state arp {
        packet.extract(hdr.arp);
        meta.target = hdr.arp.target;
        transition accept;
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        meta.target = hdr.ipv4.dst;
        transition select(hdr.ipv4.ihl, hdr.ipv4.flags & 1, hdr.ipv4.offset, hdr.ipv4.protocol) {
            (5, 0, 0, IP_ICMP): icmp;
            (5, 0, 0, IP_UDP): udp;
            default: accept;
        }
    }
    state icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst & PORTS_MASK, hdr.udp.length) {
            (PORTS, LENGTH_256): payload_256;
            (PORTS, LENGTH_256 + LENGTH_PARTIAL): partial_256;
#ifdef REST_WORDS
            (PORTS, LENGTH_1024): payload_1024;
            (PORTS, LENGTH_1024 + LENGTH_PARTIAL): partial_1024;
#endif
            (PORTS, LENGTH_WAIT): wait_or_words;
            // Sparse, with 1, 2, 4 or 8 words: no data (8 words are as long as a wait packet), 256 bytes, 512 of
            // padding, 1024. Addressed, with 1.
            (PORTS, 22): sparse;
            (PORTS, 26): sparse;
            (PORTS, 34): sparse;
            (PORTS, 278): sparse;
            (PORTS, 282): sparse;
            (PORTS, 290): sparse;
            (PORTS, 306): sparse;
            (PORTS, 534): sparse;
            (PORTS, 538): sparse;
            (PORTS, 546): sparse;
            (PORTS, 562): sparse;
            (PORTS, 1046): sparse;
            (PORTS, 1050): sparse;
            (PORTS, 1058): sparse;
            (PORTS, 1074): sparse;
            default: accept;
        }
    }
    state wait_or_words {
        packet.extract(hdr.switchml);
        transition select(hdr.switchml.kind) {
            KIND_WAIT: wait;
            default: words;
        }
    }
    state sparse {
        packet.extract(hdr.switchml);
        transition words;
    }
    state words {
        meta.has_words = 1;
        transition select(hdr.switchml.ahead) { // the upper half: flags of a partial sum
            ADDRESSED &&& 0x0f: words_1;
            8w1 &&& 0x0f: words_1;
            8w2 &&& 0x0f: words_2;
            8w4 &&& 0x0f: words_4;
            8w8 &&& 0x0f: words_8;
            default: accept;
        }
    }
    state words_1 {
        packet.extract(hdr.word_1);
        transition sparse_data;
    }
    state words_2 {
        packet.extract(hdr.word_1);
        packet.extract(hdr.word_2);
        transition sparse_data;
    }
    state words_4 {
        packet.extract(hdr.word_1);
        packet.extract(hdr.word_2);
        packet.extract(hdr.word_4);
        transition sparse_data;
    }
    state words_8 {
        packet.extract(hdr.word_1);
        packet.extract(hdr.word_2);
        packet.extract(hdr.word_4);
        packet.extract(hdr.word_8);
        transition sparse_data;
    }
    state sparse_data {
        meta.words_parsed = 1;
        transition select(hdr.switchml.size) {
            SPARSE | SIZE_256: data_256;
#ifdef REST_WORDS
            SPARSE | SIZE_1024: data_1024;
#endif
            SIZE_PADDED: padding;
            default: accept;
        }
    }
    state data_256 {
        packet.extract(hdr.first);
        meta.size = SIZE_256;
        transition accept;
    }
#ifdef REST_WORDS
    state data_1024 {
        packet.extract(hdr.first);
        packet.extract(hdr.rest);
        meta.size = SIZE_1024;
        transition accept;
    }
#endif
    state padding {
        packet.extract(hdr.padding);
        transition accept;
    }
    state payload_256 {
        packet.extract(hdr.switchml);
        packet.extract(hdr.first);
        meta.size = SIZE_256;
        transition accept;
    }
#ifdef REST_WORDS
    state payload_1024 {
        packet.extract(hdr.switchml);
        packet.extract(hdr.first);
        packet.extract(hdr.rest);
        meta.size = SIZE_1024;
        transition accept;
    }
    state partial_1024 {
        packet.extract(hdr.switchml);
        packet.extract(hdr.first);
        packet.extract(hdr.rest);
        packet.extract(hdr.partial);
        meta.size = SIZE_1024 | SIZE_PARTIAL;
        transition accept;
    }
#endif
    state partial_256 {
        packet.extract(hdr.switchml);
        packet.extract(hdr.first);
        packet.extract(hdr.partial);
        meta.size = SIZE_256 | SIZE_PARTIAL;
        transition accept;
    }
    state wait {
        packet.extract(hdr.missing);
        transition accept;
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}
