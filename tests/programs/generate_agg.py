"""Writes the aggregation programs `agg_{unrolled,wide}_{64,256}.p4`: one text, and two ways to hold a packet's lanes.

The packet is Ethernet, a slot, the sender's bit, the mask of all senders, a multicast group, then 32-bit lanes. The
first packet of a slot stores its lanes, each other sender's adds, a repeated one is dropped; the one that completes the
mask takes the sum out - to the group, or back to its sender's port where the group is 0 - and frees the slot.

- unrolled: a field and a register for every lane, as programs for hardware have it;
- wide: a 2048-bit field and register for 64 lanes, added without carries from lane to lane: sum the low 31 bits of
  each, then put the top bits back with exclusive or.

    python tests/programs/generate_agg.py        # writes the four files beside itself
"""

from pathlib import Path

WORD_LANES = 64
SLOTS = 256

PROGRAM = """\
// SPDX-License-Identifier: Apache-2.0
// Aggregation of {lanes} 32-bit lanes, {style}. Written by generate_agg.py, which says what the program does.
#include "ethernet.p4"

header agg_t {{
    bit<16> slot;
    bit<16> sender;
    bit<16> everybody;
    bit<16> group;
}}

header data_t {{
{fields}
}}

struct headers_t {{
    ethernet_t eth;
    agg_t      agg;
    data_t     data;
}}

struct meta_t {{}}

#include "plain.p4"
{constants}
parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
    state start {{
        packet.extract(hdr.eth);
        transition select(hdr.eth.type) {{
            0x88b5: agg;
            default: accept;
        }}
    }}
    state agg {{
        packet.extract(hdr.agg);
        packet.extract(hdr.data);
        transition accept;
    }}
}}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
    register<bit<16>>({slots}) senders;
{registers}

    action store() {{
        bit<32> slot = (bit<32>)hdr.agg.slot;
{store}
    }}
    action add() {{
        bit<32> slot = (bit<32>)hdr.agg.slot;
{add}
    }}
    action deliver() {{
        sm.mcast_grp = hdr.agg.group;
        sm.egress_spec = sm.ingress_port;
    }}
    action drop() {{
        mark_to_drop(sm);
    }}

    apply {{
        if (hdr.data.isValid()) {{
            bit<16> seen;
            senders.read(seen, (bit<32>)hdr.agg.slot);
            if ((seen & hdr.agg.sender) != 0) {{
                drop();
            }} else {{
                if (seen == 0) {{
                    store();
                }} else {{
                    add();
                }}
                seen = seen | hdr.agg.sender;
                if (seen == hdr.agg.everybody) {{
                    seen = 0;
                    deliver();
                }} else {{
                    drop();
                }}
                senders.write((bit<32>)hdr.agg.slot, seen);
            }}
        }} else {{
            drop();
        }}
    }}
}}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
"""

# 64 times 0x7fffffff, put together by doubling: a literal of 2048 bits is no line to read.
CONSTANTS = """
const bit<64>   LOW_2  = 0x7fffffff7fffffff;
const bit<128>  LOW_4  = LOW_2 ++ LOW_2;
const bit<256>  LOW_8  = LOW_4 ++ LOW_4;
const bit<512>  LOW_16 = LOW_8 ++ LOW_8;
const bit<1024> LOW_32 = LOW_16 ++ LOW_16;
const bit<2048> LOW    = LOW_32 ++ LOW_32;
const bit<2048> TOP    = ~LOW;
"""


def program(style: str, lanes: int) -> str:
    """The P4 text for `style` "unrolled" or "wide" (there `lanes` is a multiple of 64)."""
    wide = style == "wide"
    names = [f"w{i}" for i in range(lanes // WORD_LANES)] if wide else [f"v{i}" for i in range(lanes)]
    bits = 32 * WORD_LANES if wide else 32
    if wide:
        total = "((hdr.data.{0} & LOW) + (old_{0} & LOW)) ^ ((hdr.data.{0} ^ old_{0}) & TOP)"
    else:
        total = "hdr.data.{0} + old_{0}"
    add = "\n".join([
        f"bit<{bits}> old_{{0}};", "sum_{0}.read(old_{0}, slot);", f"hdr.data.{{0}} = {total};",
        "sum_{0}.write(slot, hdr.data.{0});",
    ])  # fmt: skip

    def lines(text: str, indent: int) -> str:
        return "\n".join(" " * indent + line for name in names for line in text.format(name).splitlines())

    return PROGRAM.format(
        lanes=lanes, style="2048 bits to a word" if wide else "a register each", slots=SLOTS,
        constants=CONSTANTS if wide else "", fields=lines(f"bit<{bits}> {{0}};", 4),
        registers=lines(f"register<bit<{bits}>>({SLOTS}) sum_{{0}};", 4),
        store=lines("sum_{0}.write(slot, hdr.data.{0});", 8), add=lines(add, 8),
    )  # fmt: skip


def main() -> None:
    for style in ("unrolled", "wide"):
        for lanes in (64, 256):
            Path(__file__).with_name(f"agg_{style}_{lanes}.p4").write_text(program(style, lanes))


if __name__ == "__main__":
    main()
