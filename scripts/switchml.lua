-- Wireshark and tshark dissector for both protocols of docs/protocol.md (v1 and v2 of SwitchML over UDP).
--
--   tshark -X lua_script:scripts/switchml.lua -i any -Y 'switchml.flags.overflow == 1'
--   wireshark -X lua_script:scripts/switchml.lua trace.pcap
-- (or copy this file to Wireshark's personal plugin folder)
--
-- UDP ports 48864-48879 are dissected; preference switchml.ports changes that, and "Decode As" works for single ports:
--   tshark -X lua_script:scripts/switchml.lua -o switchml.ports:50000 ...
--   tshark -X lua_script:scripts/switchml.lua -d udp.port==50000,switchml ...
-- A capture on loopback shows the trains that the kernel cuts into packets later: each packet gets a tree of its own.
-- A v2 packet does not say how many slots its job has; with preference switchml.slots set, slot and version are shown.
--
-- Written for Lua 5.2 to 5.4 (Wireshark 3.6 and later): no bit operators, no bit library.

local switchml = Proto("switchml", "SwitchML in-network aggregation")

local HEADER_BYTES = 10
local BITMAP_BYTES = 32
local PAYLOAD_BYTES = { [0] = 128, [1] = 256, [2] = 512, [3] = 1024 }
local SIZES = {
    [0] = "128 bytes (32 in a wait packet)", [1] = "256 bytes", [2] = "512 bytes", [3] = "1024 bytes",
    [4] = "sparse, no data", [5] = "sparse, 256 bytes", [6] = "sparse, padding", [7] = "sparse, 1024 bytes",
}
local SPARSE_BYTES = { [4] = 0, [5] = 256, [6] = 512, [7] = 1024 }
local COLUMNS = { [1] = true, [2] = true, [4] = true, [8] = true }
local WORD_BYTES, NO_ENTRY = 4, 0xFFFFFF
local ADDRESSED = 0 -- in place of columns
local PARTIAL_BIT, FLAG_BIT = 0x80, 0x10 -- before the columns of a partial sum: that it is one, and the lowest of its flags
local REACHES = { [0] = "all", [1] = "root", [2] = "all but the root" }
local OPS = {
    [0] = "sum", [1] = "max32", [2] = "max64", [3] = "or", [4] = "xor",
    [5] = "sum of float16", [6] = "sum of bfloat16", [7] = "mean of float16", [8] = "mean of bfloat16",
}
local FIRST_HALF_OP = 5
local PARTIAL_BYTES = { [5] = 256, [7] = 1024 } -- sums between switches, which have two more bytes
local PARTIAL = 4 -- in their size code
local PARTIAL_FLAG_BYTES, AUTH_BYTES = 2, 8
local TYPES = {
    [1] = "v1", [8] = "contribution int32", [9] = "contribution int16", [10] = "contribution int8",
    [12] = "result int32", [13] = "result int16", [14] = "result int8", [15] = "wait",
}
local LANE_BYTES = { [1] = 4, [8] = 4, [9] = 2, [10] = 1, [12] = 4, [13] = 2, [14] = 1 }

local f = {
    version = ProtoField.uint8("switchml.version", "Protocol version"),
    type = ProtoField.uint8("switchml.type", "Type", base.DEC, TYPES, 0xF0),
    retransmission = ProtoField.bool("switchml.retransmission", "R: retransmission, or answer to one", 8, nil, 0x08),
    size = ProtoField.uint8("switchml.size", "Payload size", base.DEC, SIZES, 0x07),
    job = ProtoField.uint8("switchml.job", "Job number"),
    tsi = ProtoField.uint32("switchml.tsi", "TSI (big-endian)", base.DEC_HEX),
    pool_index = ProtoField.uint16("switchml.pool_index", "Pool index", base.HEX),
    slot = ProtoField.uint32("switchml.slot", "Slot"),
    set = ProtoField.uint8("switchml.set", "Set"),
    e0 = ProtoField.int8("switchml.e0", "Exponent 0"),
    e1 = ProtoField.int8("switchml.e1", "Exponent 1"),
    ahead = ProtoField.int8("switchml.ahead", "Ahead"),
    columns = ProtoField.uint8("switchml.columns", "Columns", base.DEC, nil, 0x0F),
    mark = ProtoField.int8("switchml.mark", "Mark"),
    words = ProtoField.uint32("switchml.words", "Word", base.HEX),
    entry = ProtoField.uint32("switchml.entry", "Entry"),
    reach = ProtoField.uint8("switchml.reach", "Data go to", base.DEC, REACHES),
    root = ProtoField.uint8("switchml.root", "Root"),
    op = ProtoField.uint8("switchml.op", "Op", base.DEC, OPS),
    seq = ProtoField.uint32("switchml.seq", "Sequence number", base.DEC_HEX),
    tag = ProtoField.uint16("switchml.tag", "Tag", base.HEX),
    need = ProtoField.int8("switchml.need", "Need"),
    used = ProtoField.int8("switchml.used", "Used"),
    flags = ProtoField.uint8("switchml.flags", "Flags", base.HEX),
    overflow = ProtoField.bool("switchml.flags.overflow", "OVERFLOW", 8, nil, 0x01),
    mixed = ProtoField.bool("switchml.flags.mixed", "MIXED", 8, nil, 0x02),
    partial = ProtoField.uint8("switchml.partial", "Flags of a partial sum", base.HEX),
    payload = ProtoField.none("switchml.payload", "Values"),
    values = ProtoField.int32("switchml.values", "Value"),
    halves = ProtoField.double("switchml.halves", "Value"),
    bitmap = ProtoField.none("switchml.bitmap", "Missing ranks"),
    missing = ProtoField.uint16("switchml.missing", "Missing rank"),
    auth = ProtoField.bytes("switchml.auth", "Authentication (SipHash-2-4)"),
}
switchml.fields = {
    f.version, f.type, f.retransmission, f.size, f.job, f.tsi, f.pool_index, f.slot, f.set, f.e0, f.e1, f.ahead,
    f.seq, f.tag, f.need, f.used, f.flags, f.overflow, f.mixed, f.partial, f.payload, f.values, f.halves,
    f.bitmap, f.missing,
    f.columns, f.mark, f.words, f.entry, f.auth, f.reach, f.root, f.op,
}

local group, severity = expert.group, expert.severity
local malformed = ProtoExpert.new("switchml.malformed", "Malformed SwitchML packet", group.MALFORMED, severity.ERROR)
local dropped = ProtoExpert.new("switchml.dropped", "Aggregators drop this", group.PROTOCOL, severity.WARN)
local overflowed = ProtoExpert.new("switchml.overflowed", "A lane overflowed", group.PROTOCOL, severity.WARN)
local mixed = ProtoExpert.new("switchml.exponents_differ", "Exponents differ", group.SEQUENCE, severity.NOTE)
local again = ProtoExpert.new("switchml.again", "Retransmission, or the answer to one", group.SEQUENCE, severity.NOTE)
switchml.experts = { malformed, dropped, overflowed, mixed, again }

local DEFAULT_PORTS = "48864-48879"
switchml.prefs.ports = Pref.range("UDP ports", DEFAULT_PORTS, "An aggregator's UDP ports", 65535)
switchml.prefs.slots = Pref.uint("Slots of a v2 job", 0, "To show slot and version of a v2 packet; 0: not known")

-- What an exponent code means; `names` gives the codes that are no exponents.
local function code_text(code, names)
    if names[code] then
        return names[code]
    end
    return string.format("2^%d%s", code + 2, code == -128 and " or zeros" or "")
end

local function add_code(tree, field, range, names)
    local code = range:int()
    tree:add(field, range, code):append_text(" (" .. code_text(code, names) .. ")")
    return code
end

local AHEAD, NEED, USED = { [127] = "unknown" }, { [127] = "not finite" }, { [127] = "classify", [125] = "integer", [123] = "integer64" }

-- Bytes 0-9 of a v1 packet; returns the info text. Only the matched port tells which way the packet goes.
local function v1_header(tvb, pinfo, tree)
    local way = pinfo.match_uint == pinfo.src_port and "result" or "contribution"
    local tsi, index = tvb(2, 4), tvb(6, 2)
    local set, slot = index:bitfield(0, 1), index:bitfield(2, 14)
    tree:add(f.job, tvb(1, 1))
    tree:add(f.tsi, tsi):append_text(string.format(", little-endian %d", tsi:le_uint()))
    local branch = tree:add(f.pool_index, index)
    branch:append_text(string.format(", slot %d, set %d", slot, set))
    branch:add(f.set, index, set)
    branch:add(f.slot, index, slot)
    tree:add(f.e0, tvb(8, 1))
    tree:add(f.e1, tvb(9, 1))
    return string.format("v1 %s slot %d set %d, job %d, tsi %d (le %d), e0 %d", way, slot, set, tvb(1, 1):uint(),
        tsi:uint(), tsi:le_uint(), tvb(8, 1):int())
end

-- What a packet's first byte says: its kind, its size code.
local function kind_and_code(tvb, at)
    return tvb(at, 1):bitfield(0, 4), tvb(at, 1):bitfield(5, 3)
end

-- Columns of a sparse or addressed packet, and the flags of a partial sum, nil if it is none.
local function columns_and_flags(tvb, at)
    local byte = tvb(at + 1, 1):uint()
    if byte >= PARTIAL_BIT and kind_and_code(tvb, at) < 12 then
        return byte % FLAG_BIT, math.floor(byte % PARTIAL_BIT / FLAG_BIT)
    end
    return byte, nil
end

-- Bytes 0-9 of a v2 packet; returns the info text.
local function v2_header(tvb, tree, kind, sparse, addressed)
    local seq, r = tvb(2, 4):uint(), tvb(0, 1):bitfield(4, 1) == 1
    local info = string.format("%s seq %d", TYPES[kind], seq)
    if sparse then
        local _, flags = columns_and_flags(tvb, 0)
        info = (addressed and "addressed " or "sparse ") .. info
        if flags then
            tree:add(f.partial, tvb(1, 1), flags)
            info = "partial sum of " .. info
        end
        if not addressed then
            tree:add(f.columns, tvb(1, 1))
        end
    elseif kind ~= 15 then
        add_code(tree, f.ahead, tvb(1, 1), AHEAD)
    end
    local line = tree:add(f.seq, tvb(2, 4))
    local slots = switchml.prefs.slots
    if slots > 0 then
        local slot, set = seq % slots, math.floor(seq / slots) % 2
        line:append_text(string.format(", slot %d, version %d", slot, set))
        tree:add(f.slot, tvb(2, 4), slot):set_generated()
        tree:add(f.set, tvb(2, 4), set):set_generated()
        info = string.format("%s (slot %d.%d)", info, slot, set)
    end
    tree:add(f.tag, tvb(6, 2))
    info = string.format("%s tag 0x%04x", info, tvb(6, 2):uint())
    if kind == 15 then
        return info
    end
    if addressed or not sparse then
        info = string.format("%s need %d", info, add_code(tree, f.need, tvb(8, 1), NEED))
    end
    if kind < 12 then
        if sparse and not addressed then
            tree:add(f.mark, tvb(9, 1))
        else
            info = string.format("%s used %d", info, add_code(tree, f.used, tvb(9, 1), USED))
        end
        if r then
            tree:add_proto_expert_info(again, "Retransmission")
            info = info .. " [retransmission]"
        end
        return info
    end
    local branch = tree:add(f.flags, tvb(9, 1))
    branch:add(f.overflow, tvb(9, 1))
    branch:add(f.mixed, tvb(9, 1))
    if tvb(9, 1):bitfield(7, 1) == 1 then
        branch:append_text(" OVERFLOW")
        branch:add_proto_expert_info(overflowed)
        info = info .. " [OVERFLOW]"
    end
    if tvb(9, 1):bitfield(6, 1) == 1 then
        branch:append_text(" MIXED")
        branch:add_proto_expert_info(mixed)
        info = info .. " [MIXED]"
    end
    if r then
        tree:add_proto_expert_info(again, "Answer to a retransmission")
        info = info .. " [answer]"
    end
    return info
end

-- The words of a sparse packet: what its sender has next, by column; returns them as text.
local function add_words(tvb, tree, count)
    local texts = {}
    for i = 0, count - 1 do
        local word = tvb(HEADER_BYTES + i * WORD_BYTES, WORD_BYTES)
        local entry = math.floor(word:uint() / 256)
        local text = "no more"
        if entry ~= NO_ENTRY then
            text = string.format("%d (%s)", entry, code_text(127 - word:uint() % 256, NEED))
        end
        local branch = tree:add(f.words, word)
        branch:append_text(": " .. text)
        branch:add(f.entry, word, entry)
        texts[#texts + 1] = text
    end
    return table.concat(texts, ", ")
end

-- The word of an addressed packet: who gets the data, and what is done with them; returns it as text.
local function add_address(tvb, tree)
    tree:add(f.reach, tvb(HEADER_BYTES, 1))
    tree:add(f.root, tvb(HEADER_BYTES + 1, 1))
    tree:add(f.op, tvb(HEADER_BYTES + 2, 1))
    local code = 127 - tvb(HEADER_BYTES + 3, 1):uint()
    tree:add(f.ahead, tvb(HEADER_BYTES + 3, 1), code):append_text(": " .. code_text(code, AHEAD))
    local reach, op = tvb(HEADER_BYTES, 1):uint(), tvb(HEADER_BYTES + 2, 1):uint()
    return string.format("%s to %s (root %d)", OPS[op] or op, REACHES[reach] or reach, tvb(HEADER_BYTES + 1, 1):uint())
end

-- As many whole lanes as were captured, from byte `first` on.
local function add_lanes(tvb, tree, first, bytes, width)
    local count = math.floor(bytes / width)
    if count == 0 then
        return
    end
    local branch = tree:add(f.payload, tvb(first, count * width))
    branch:append_text(string.format(": %d lanes of int%d", count, 8 * width))
    for i = 0, count - 1 do
        local lane = tvb(first + i * width, width)
        branch:add(f.values, lane, lane:int()):prepend_text(string.format("[%d] ", i))
    end
end

-- The number that 16 bits of float16 or bfloat16 stand for.
local function half(bits, exponent_bits)
    local fractions, exponents = 2 ^ (15 - exponent_bits), 2 ^ exponent_bits
    local sign, exponent = bits >= 0x8000 and -1 or 1, math.floor(bits / fractions) % exponents
    local fraction = bits % fractions / fractions
    if exponent == exponents - 1 then
        return fraction == 0 and sign * math.huge or 0 / 0
    end
    local bias = exponents / 2 - 1
    return exponent == 0 and sign * fraction * 2 ^ (1 - bias) or sign * (1 + fraction) * 2 ^ (exponent - bias)
end

-- As many whole lanes of half precision as were captured, little-endian.
local function add_halves(tvb, tree, first, bytes, op)
    local count, exponent_bits = math.floor(bytes / 2), op % 2 == 1 and 5 or 8
    if count == 0 then
        return
    end
    local branch = tree:add(f.payload, tvb(first, count * 2))
    branch:append_text(string.format(": %d lanes of %s", count, exponent_bits == 5 and "float16" or "bfloat16"))
    for i = 0, count - 1 do
        local lane = tvb(first + i * 2, 2)
        branch:add(f.halves, lane, half(lane:le_uint(), exponent_bits)):prepend_text(string.format("[%d] ", i))
    end
end

-- The ranks of a wait packet's bitmap; returns them as text.
local function add_missing(tvb, tree, bytes)
    local ranks = {}
    if bytes == 0 then
        return ""
    end
    local branch = tree:add(f.bitmap, tvb(HEADER_BYTES, bytes))
    for i = 0, bytes - 1 do
        for bit = 0, 7 do
            -- Bit `bit` counted from the least significant one; bitfield() counts from the most significant one.
            if tvb(HEADER_BYTES + i, 1):bitfield(7 - bit, 1) == 1 then
                branch:add(f.missing, tvb(HEADER_BYTES + i, 1), 8 * i + bit)
                ranks[#ranks + 1] = tostring(8 * i + bit)
            end
        end
    end
    local text = table.concat(ranks, ", ")
    branch:append_text(": " .. text)
    return text
end

-- Bytes that should follow the header at `at`, by its size code and as a partial sum; nil for each that cannot be.
local function expected_bytes(tvb, at)
    local kind, code = kind_and_code(tvb, at)
    if kind == 1 then
        return PAYLOAD_BYTES[code], nil
    elseif kind == 15 then
        return code == 0 and BITMAP_BYTES or nil, nil
    elseif code < 4 then
        return (code == 1 or code == 3) and PAYLOAD_BYTES[code] or nil, nil
    end
    local columns = columns_and_flags(tvb, at)
    if columns == ADDRESSED then
        columns = 1 -- it has one word, too
    end
    local sparse = COLUMNS[columns] and columns * WORD_BYTES + SPARSE_BYTES[code] or nil
    local partial = kind <= 10 and PARTIAL_BYTES[code]
    return sparse, partial and partial + PARTIAL_FLAG_BYTES or nil
end

-- What one packet of `captured` bytes (of `length`) is: adds its tree, returns its info text.
local function dissect_packet(tvb, captured, length, pinfo, root)
    local tree = root:add(switchml, tvb(0, captured))
    if captured < HEADER_BYTES then
        local info = string.format("%d bytes", length)
        if length < HEADER_BYTES then
            info = "malformed: " .. info
            tree:add_proto_expert_info(malformed, string.format("%d bytes: the header has %d", length, HEADER_BYTES))
        end
        return info
    end

    local first = tvb(0, 1)
    local kind, code = kind_and_code(tvb, 0)
    local known = TYPES[kind] ~= nil
    if known then
        tree:add(f.version, first, kind == 1 and 1 or 2):set_generated()
    end
    tree:add(f.type, first)
    if kind ~= 1 then
        tree:add(f.retransmission, first)
    end
    tree:add(f.size, first)
    if not known then
        tree:add_proto_expert_info(malformed, string.format("Type %d is none of SwitchML's", kind))
        return string.format("malformed: type %d", kind)
    end

    -- No sparse packet has the length of a partial sum.
    local follows, problem = length - HEADER_BYTES, nil
    local expected, as_partial = expected_bytes(tvb, 0)
    local is_partial = as_partial ~= nil and (follows == as_partial or follows == as_partial + AUTH_BYTES)
    local sparse = code >= 4 and kind ~= 1 and kind ~= 15 and not is_partial
    local columns = columns_and_flags(tvb, 0)
    local addressed = sparse and columns == ADDRESSED
    local info = kind == 1 and v1_header(tvb, pinfo, tree) or v2_header(tvb, tree, kind, sparse, addressed)
    if is_partial then
        code, expected = code - PARTIAL, as_partial
        info = "partial sum of " .. info
    elseif sparse and expected == nil then
        problem = string.format("%d columns: expected 1, 2, 4 or 8", columns)
    end
    if addressed and follows >= WORD_BYTES then
        if kind >= 12 and follows == WORD_BYTES and code ~= 6 then
            expected = WORD_BYTES -- a result for a rank that gets no data
        end
        if captured >= HEADER_BYTES + WORD_BYTES then
            local reach, op = tvb(HEADER_BYTES, 1):uint(), tvb(HEADER_BYTES + 2, 1):uint()
            if not REACHES[reach] or not OPS[op] then
                problem = string.format("Reach %d, op %d: expected at most 2 and 8", reach, op)
            end
        end
    end
    local authenticated = kind ~= 1 and expected ~= nil and follows == expected + AUTH_BYTES
    if expected == nil then
        problem = problem or string.format("Size code %d in a packet of type %d", code, kind)
    elseif expected ~= follows and not authenticated then
        problem = problem or string.format("Size code %d wants %d bytes, %d follow", code, expected, follows)
    elseif kind == 1 and (code == 0 or code == 2) then
        tree:add_proto_expert_info(dropped, string.format("Payload of %d bytes: aggregators drop it", expected))
        info = info .. " [dropped size]"
    end

    local bytes = math.min(expected or follows, captured - HEADER_BYTES)
    if addressed then
        if bytes >= WORD_BYTES then
            local op, first = tvb(HEADER_BYTES + 2, 1):uint(), HEADER_BYTES + WORD_BYTES
            info = info .. " " .. add_address(tvb, tree)
            if code ~= 6 and op >= FIRST_HALF_OP then
                add_halves(tvb, tree, first, bytes - WORD_BYTES, op)
            elseif code ~= 6 then
                add_lanes(tvb, tree, first, bytes - WORD_BYTES, LANE_BYTES[kind])
            end
        end
    elseif sparse then
        local words = math.floor(math.min(bytes, columns * WORD_BYTES) / WORD_BYTES)
        info = info .. " next " .. add_words(tvb, tree, words)
        if code ~= 6 then
            add_lanes(tvb, tree, HEADER_BYTES + words * WORD_BYTES, bytes - words * WORD_BYTES, LANE_BYTES[kind])
        end
    elseif kind == 15 then
        info = info .. " missing ranks " .. add_missing(tvb, tree, math.min(bytes, BITMAP_BYTES))
    elseif is_partial then
        local lanes = math.min(bytes, expected - PARTIAL_FLAG_BYTES)
        add_lanes(tvb, tree, HEADER_BYTES, lanes, LANE_BYTES[kind])
        if bytes == expected then
            tree:add(f.partial, tvb(HEADER_BYTES + lanes, 1))
        end
    else
        add_lanes(tvb, tree, HEADER_BYTES, bytes, LANE_BYTES[kind])
    end
    if authenticated and captured == length then
        tree:add(f.auth, tvb(length - AUTH_BYTES, AUTH_BYTES))
    end
    if problem then
        tree:add_proto_expert_info(malformed, problem)
        info = info .. " [malformed]"
    end
    tree:append_text(", " .. info)
    return info
end

-- Bytes of the first of several packets of one sender that are `length` together, or `length` itself. What follows it
-- must begin like a packet of the same version and (v2) job: length and start decide together.
local function first_packet_bytes(tvb, captured, length)
    if captured < HEADER_BYTES or not TYPES[kind_and_code(tvb, 0)] then
        return length
    end
    local kind = kind_and_code(tvb, 0)
    local expected, partial = expected_bytes(tvb, 0)
    for _, follow in ipairs({ expected or false, partial or false }) do
        for _, extra in ipairs({ 0, kind ~= 1 and AUTH_BYTES or nil }) do
            local at = follow and HEADER_BYTES + follow + extra or length
            if at == length and follow then
                return length
            elseif at + HEADER_BYTES <= captured then
                local next_kind = kind_and_code(tvb, at)
                local same_job = kind ~= 1 and next_kind >= 8 and tvb(at + 6, 2):uint() == tvb(6, 2):uint()
                local as_packet, as_partial = expected_bytes(tvb, at)
                if TYPES[next_kind] and (same_job or kind == 1 and next_kind == 1) and (as_packet or as_partial) then
                    return at
                end
            elseif captured < length and at < length then
                return at -- the capture was cut before what follows
            end
        end
    end
    return length
end

function switchml.dissector(tvb, pinfo, root)
    local captured, length = tvb:captured_len(), tvb:reported_len()
    pinfo.cols.protocol = "SwitchML"
    local at, packets, last_info, info = 0, 0, nil, nil
    repeat
        local rest, rest_length = captured - at, length - at
        local part = at == 0 and tvb or tvb(at, rest):tvb()
        local size = first_packet_bytes(part, rest, rest_length)
        last_info = dissect_packet(part, math.min(size, rest), size, pinfo, root)
        info = info or last_info
        at, packets = at + size, packets + 1
    until at >= captured
    if packets > 1 then
        info = string.format("%d packets: %s … %s", packets, info, last_info)
    end
    pinfo.cols.info = info
    return captured
end

local udp = DissectorTable.get("udp.port")
local bound = DEFAULT_PORTS
udp:add(bound, switchml)

function switchml.prefs_changed()
    local wanted = tostring(switchml.prefs.ports)
    if wanted ~= bound then
        if bound ~= "" then
            udp:remove(bound, switchml)
        end
        bound = wanted
        if bound ~= "" then
            udp:add(bound, switchml)
        end
    end
end
