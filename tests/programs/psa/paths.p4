// SPDX-License-Identifier: Apache-2.0
// Every way that a packet may go through the Portable Switch Architecture: the first byte says which, and the packet
// notes how it came to ingress and to egress.
#include <core.p4>
#include <psa.p4>

header note_t {
    bit<8>  way;       // 0 drop, 1 unicast, 2 multicast, 3 and 4 clone at ingress and egress, 5 resubmit, 6 recirculate
    bit<8>  ingress;   // packet_path at ingress
    bit<8>  egress;    // packet_path at egress
    bit<8>  instance;
    bit<8>  color;
    bit<8>  passes;    // counted in a register
}

struct headers_t { note_t note; }
struct nothing_t {}

parser Arrive(packet_in packet, out headers_t hdr, inout nothing_t meta, in psa_ingress_parser_input_metadata_t std,
              in nothing_t resubmitted, in nothing_t recirculated) {
    state start { packet.extract(hdr.note); transition accept; }
}

control In(inout headers_t hdr, inout nothing_t meta, in psa_ingress_input_metadata_t std,
           inout psa_ingress_output_metadata_t out_std) {
    Counter<bit<32>, bit<8>>(8, PSA_CounterType_t.PACKETS) ways;
    Meter<bit<8>>(8, PSA_MeterType_t.PACKETS) rates;
    Register<bit<8>, bit<8>>(1) passes;
    apply {
        ways.count(hdr.note.way);
        PSA_MeterColor_t color = rates.execute(hdr.note.way);
        hdr.note.color = color == PSA_MeterColor_t.GREEN ? 8w1 : (color == PSA_MeterColor_t.RED ? 8w2 : 8w3);
        bit<8> n = passes.read(0) + 1;
        passes.write(0, n);
        hdr.note.passes = n;
        bool resubmitted = std.packet_path == PSA_PacketPath_t.RESUBMIT;
        bool recirculated = std.packet_path == PSA_PacketPath_t.RECIRCULATE;
        hdr.note.ingress = resubmitted ? 8w5 : (recirculated ? 8w6 : 8w0);
        if (hdr.note.way == 2) {
            multicast(out_std, (MulticastGroup_t)(MulticastGroupUint_t)1);
        } else if (hdr.note.way == 5 && !resubmitted) {
            out_std.drop = false;
            out_std.resubmit = true;
        } else if (hdr.note.way == 6 && !recirculated) {
            send_to_port(out_std, PSA_PORT_RECIRCULATE);
        } else if (hdr.note.way != 0) {
            send_to_port(out_std, (PortId_t)(PortIdUint_t)2);
        }
        if (hdr.note.way == 3) {
            out_std.clone = true;
            out_std.clone_session_id = (CloneSessionId_t)8;
        }
    }
}

control Between(packet_out packet, out nothing_t cloned, out nothing_t resubmitted, out nothing_t normal,
                inout headers_t hdr, in nothing_t meta, in psa_ingress_output_metadata_t std) {
    apply { packet.emit(hdr.note); }
}

parser Leave(packet_in packet, out headers_t hdr, inout nothing_t meta, in psa_egress_parser_input_metadata_t std,
             in nothing_t normal, in nothing_t cloned_in, in nothing_t cloned_out) {
    state start { packet.extract(hdr.note); transition accept; }
}

control Out(inout headers_t hdr, inout nothing_t meta, in psa_egress_input_metadata_t std,
            inout psa_egress_output_metadata_t out_std) {
    apply {
        hdr.note.egress = std.packet_path == PSA_PacketPath_t.NORMAL_UNICAST ? 8w1 :
            (std.packet_path == PSA_PacketPath_t.NORMAL_MULTICAST ? 8w2 :
            (std.packet_path == PSA_PacketPath_t.CLONE_I2E ? 8w3 : 8w4));
        hdr.note.instance = (bit<8>)(EgressInstanceUint_t)std.instance;
        if (hdr.note.way == 4 && std.packet_path != PSA_PacketPath_t.CLONE_E2E) {
            out_std.clone = true;
            out_std.clone_session_id = (CloneSessionId_t)8;
        }
    }
}

control End(packet_out packet, out nothing_t cloned, out nothing_t recirculated, inout headers_t hdr, in nothing_t meta,
            in psa_egress_output_metadata_t std, in psa_egress_deparser_input_metadata_t dstd) {
    apply { packet.emit(hdr.note); }
}

IngressPipeline(Arrive(), In(), Between()) ingress;
EgressPipeline(Leave(), Out(), End()) egress;

PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
