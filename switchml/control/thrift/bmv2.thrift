# The Thrift interfaces of BMv2 1.15: the services standard, simple_pre, simple_pre_lag and simple_switch. Types, numbers
# and names of calls are those of BMv2's standard.thrift, simple_pre.thrift, simple_pre_lag.thrift and
# simple_switch.thrift; clients of every version since 1.0 know a subset. Names of arguments, which are not sent, are ours.

typedef i32 Handle
typedef list<binary> Data

enum MatchKind { EXACT = 0, LPM = 1, TERNARY = 2, VALID = 3, RANGE = 4 }
struct Exact { 1: binary key }
struct Lpm { 1: binary key, 2: i32 prefix_length }
struct Ternary { 1: binary key, 2: binary mask }
struct Valid { 1: bool key }
struct Range { 1: binary start, 2: binary end_ }
struct MatchParam { 1: MatchKind type, 2: Exact exact, 3: Lpm lpm, 4: Ternary ternary, 5: Valid valid,
    6: Range range }
typedef list<MatchParam> Match
struct Options { 1: i32 priority }

struct CounterValue { 1: i64 bytes, 2: i64 packets }
struct Rate { 1: double units_per_micros, 2: i32 burst_size }
typedef list<Rate> Rates

enum InvalidTableOperationCode { TABLE_FULL = 1, INVALID_HANDLE = 2, EXPIRED_HANDLE = 3, COUNTERS_DISABLED = 4,
    METERS_DISABLED = 5, AGEING_DISABLED = 6, INVALID_TABLE_NAME = 7, INVALID_ACTION_NAME = 8, WRONG_TABLE_TYPE = 9,
    INVALID_MBR_HANDLE = 10, MBR_STILL_USED = 11, MBR_ALREADY_IN_GRP = 12, MBR_NOT_IN_GRP = 13,
    INVALID_GRP_HANDLE = 14, GRP_STILL_USED = 15, EMPTY_GRP = 16, DUPLICATE_ENTRY = 17, BAD_MATCH_KEY = 18,
    INVALID_METER_OPERATION = 19, DEFAULT_ACTION_IS_CONST = 20, DEFAULT_ENTRY_IS_CONST = 21, NO_DEFAULT_ENTRY = 22,
    INVALID_ACTION_PROFILE_NAME = 23, NO_ACTION_PROFILE_SELECTION = 24, IMMUTABLE_TABLE_ENTRIES = 25,
    BAD_ACTION_DATA = 26, NO_TABLE_KEY = 27, ERROR = 100 }
exception InvalidTableOperation { 1: InvalidTableOperationCode code }
enum InvalidCounterOperationCode { INVALID_COUNTER_NAME = 1, INVALID_INDEX = 2, ERROR = 3 }
exception InvalidCounterOperation { 1: InvalidCounterOperationCode code }
enum InvalidSwapOperationCode { CONFIG_SWAP_DISABLED = 1, ONGOING_SWAP = 2, NO_ONGOING_SWAP = 3 }
exception InvalidSwapOperation { 1: InvalidSwapOperationCode code }
enum InvalidMeterOperationCode { INVALID_METER_NAME = 1, INVALID_INDEX = 2, BAD_RATES_LIST = 3,
    INVALID_INFO_RATE_VALUE = 4, INVALID_BURST_SIZE_VALUE = 5, ERROR = 6 }
exception InvalidMeterOperation { 1: InvalidMeterOperationCode code }
enum InvalidRegisterOperationCode { INVALID_REGISTER_NAME = 1, INVALID_INDEX = 2, ERROR = 3 }
exception InvalidRegisterOperation { 1: InvalidRegisterOperationCode code }
enum InvalidParseVSetOperationCode { INVALID_PARSE_VSET_NAME = 1, ERROR = 2 }
exception InvalidParseVSetOperation { 1: InvalidParseVSetOperationCode code }
enum InvalidLearnOperationCode { INVALID_LIST_ID = 1, INVALID_LIST_NAME = 2, ERROR = 3 }
exception InvalidLearnOperation { 1: InvalidLearnOperationCode code }
enum InvalidDevMgrOperationCode { ERROR = 1 }
exception InvalidDevMgrOperation { 1: InvalidDevMgrOperationCode code }
enum InvalidCrcOperationCode { INVALID_CALCULATION_NAME = 1, WRONG_TYPE_CALCULATION = 2, INVALID_CONFIG = 3 }
exception InvalidCrcOperation { 1: InvalidCrcOperationCode code }
enum InvalidToeplitzHashOperationCode { INVALID_CALCULATION_NAME = 1, WRONG_TYPE_CALCULATION = 2, INVALID_KEY = 3 }
exception InvalidToeplitzHashOperation { 1: InvalidToeplitzHashOperationCode code }
enum InvalidIdLookupCode { INVALID_RESOURCE_TYPE = 0, INVALID_RESOURCE_NAME = 1 }
exception InvalidIdLookup { 1: InvalidIdLookupCode code }

struct Port { 1: i32 port_num, 2: string iface_name, 3: bool is_up, 4: map<string,string> extra }
struct Crc16 { 1: i16 polynomial, 2: i16 initial_remainder, 3: i16 final_xor_value, 4: bool data_reflected,
    5: bool remainder_reflected }
struct Crc32 { 1: i32 polynomial, 2: i32 initial_remainder, 3: i32 final_xor_value, 4: bool data_reflected,
    5: bool remainder_reflected }
enum ActionKind { NONE = 0, ACTION_DATA = 1, MBR_HANDLE = 2, GRP_HANDLE = 3 }
struct ActionEntry { 1: ActionKind action_type, 2: string action_name, 3: Data action_data, 4: Handle mbr_handle,
    5: Handle grp_handle }
struct Life { 1: i32 timeout_ms, 2: i32 time_since_hit_ms }
struct Entry { 1: Match match_key, 2: Options options, 3: Handle entry_handle, 4: ActionEntry action_entry,
    5: Life life }
struct Member { 1: Handle mbr_handle, 2: string action_name, 3: Data action_data }
struct Group { 1: Handle grp_handle, 2: list<Handle> mbr_handles }
struct Config { 1: i64 device_id, 2: i32 thrift_port, 3: string notifications_socket, 4: string elogger_socket,
    5: string debugger_socket }
enum ResourceType { MATCH_TABLE = 0, ACTION_PROFILE = 1, COUNTER = 2, METER = 3, REGISTER = 4, LEARNING_LIST = 5 }

service standard {
    i64 bm_mt_get_num_entries(1: i32 cxt, 2: string table) throws (1: InvalidTableOperation refused)
    void bm_mt_clear_entries(1: i32 cxt, 2: string table, 3: bool reset_default)
        throws (1: InvalidTableOperation refused)
    Handle bm_mt_add_entry(1: i32 cxt, 2: string table, 3: Match match, 4: string action, 5: Data data,
        6: Options options) throws (1: InvalidTableOperation refused)
    void bm_mt_set_default_action(1: i32 cxt, 2: string table, 3: string action, 4: Data data)
        throws (1: InvalidTableOperation refused)
    void bm_mt_reset_default_entry(1: i32 cxt, 2: string table) throws (1: InvalidTableOperation refused)
    void bm_mt_delete_entry(1: i32 cxt, 2: string table, 3: Handle entry) throws (1: InvalidTableOperation refused)
    void bm_mt_modify_entry(1: i32 cxt, 2: string table, 3: Handle entry, 4: string action, 5: Data data)
        throws (1: InvalidTableOperation refused)
    void bm_mt_set_entry_ttl(1: i32 cxt, 2: string table, 3: Handle entry, 4: i32 timeout_ms)
        throws (1: InvalidTableOperation refused)

    Handle bm_mt_act_prof_add_member(1: i32 cxt, 2: string profile, 3: string action, 4: Data data)
        throws (1: InvalidTableOperation refused)
    void bm_mt_act_prof_delete_member(1: i32 cxt, 2: string profile, 3: Handle member)
        throws (1: InvalidTableOperation refused)
    void bm_mt_act_prof_modify_member(1: i32 cxt, 2: string profile, 3: Handle member, 4: string action, 5: Data data)
        throws (1: InvalidTableOperation refused)
    Handle bm_mt_act_prof_create_group(1: i32 cxt, 2: string profile) throws (1: InvalidTableOperation refused)
    void bm_mt_act_prof_delete_group(1: i32 cxt, 2: string profile, 3: Handle group)
        throws (1: InvalidTableOperation refused)
    void bm_mt_act_prof_add_member_to_group(1: i32 cxt, 2: string profile, 3: Handle member, 4: Handle group)
        throws (1: InvalidTableOperation refused)
    void bm_mt_act_prof_remove_member_from_group(1: i32 cxt, 2: string profile, 3: Handle member, 4: Handle group)
        throws (1: InvalidTableOperation refused)
    list<Member> bm_mt_act_prof_get_members(1: i32 cxt, 2: string profile) throws (1: InvalidTableOperation refused)
    Member bm_mt_act_prof_get_member(1: i32 cxt, 2: string profile, 3: Handle member)
        throws (1: InvalidTableOperation refused)
    list<Group> bm_mt_act_prof_get_groups(1: i32 cxt, 2: string profile) throws (1: InvalidTableOperation refused)
    Group bm_mt_act_prof_get_group(1: i32 cxt, 2: string profile, 3: Handle group)
        throws (1: InvalidTableOperation refused)

    Handle bm_mt_indirect_add_entry(1: i32 cxt, 2: string table, 3: Match match, 4: Handle member, 5: Options options)
        throws (1: InvalidTableOperation refused)
    void bm_mt_indirect_modify_entry(1: i32 cxt, 2: string table, 3: Handle entry, 4: Handle member)
        throws (1: InvalidTableOperation refused)
    void bm_mt_indirect_delete_entry(1: i32 cxt, 2: string table, 3: Handle entry)
        throws (1: InvalidTableOperation refused)
    void bm_mt_indirect_set_entry_ttl(1: i32 cxt, 2: string table, 3: Handle entry, 4: i32 timeout_ms)
        throws (1: InvalidTableOperation refused)
    void bm_mt_indirect_set_default_member(1: i32 cxt, 2: string table, 3: Handle member)
        throws (1: InvalidTableOperation refused)
    void bm_mt_indirect_reset_default_entry(1: i32 cxt, 2: string table) throws (1: InvalidTableOperation refused)
    Handle bm_mt_indirect_ws_add_entry(1: i32 cxt, 2: string table, 3: Match match, 4: Handle group,
        5: Options options) throws (1: InvalidTableOperation refused)
    void bm_mt_indirect_ws_modify_entry(1: i32 cxt, 2: string table, 3: Handle entry, 4: Handle group)
        throws (1: InvalidTableOperation refused)
    void bm_mt_indirect_ws_set_default_group(1: i32 cxt, 2: string table, 3: Handle group)
        throws (1: InvalidTableOperation refused)

    CounterValue bm_mt_read_counter(1: i32 cxt, 2: string table, 3: Handle entry)
        throws (1: InvalidTableOperation refused)
    void bm_mt_reset_counters(1: i32 cxt, 2: string table) throws (1: InvalidTableOperation refused)
    void bm_mt_write_counter(1: i32 cxt, 2: string table, 3: Handle entry, 4: CounterValue value)
        throws (1: InvalidTableOperation refused)
    void bm_mt_set_meter_rates(1: i32 cxt, 2: string table, 3: Handle entry, 4: Rates rates)
        throws (1: InvalidTableOperation refused)
    Rates bm_mt_get_meter_rates(1: i32 cxt, 2: string table, 3: Handle entry)
        throws (1: InvalidTableOperation refused)
    list<Entry> bm_mt_get_entries(1: i32 cxt, 2: string table) throws (1: InvalidTableOperation refused)
    Entry bm_mt_get_entry(1: i32 cxt, 2: string table, 3: Handle entry) throws (1: InvalidTableOperation refused)
    ActionEntry bm_mt_get_default_entry(1: i32 cxt, 2: string table) throws (1: InvalidTableOperation refused)
    Entry bm_mt_get_entry_from_key(1: i32 cxt, 2: string table, 3: Match match, 4: Options options)
        throws (1: InvalidTableOperation refused)

    CounterValue bm_counter_read(1: i32 cxt, 2: string counter, 3: i32 index)
        throws (1: InvalidCounterOperation refused)
    void bm_counter_reset_all(1: i32 cxt, 2: string counter) throws (1: InvalidCounterOperation refused)
    void bm_counter_write(1: i32 cxt, 2: string counter, 3: i32 index, 4: CounterValue value)
        throws (1: InvalidCounterOperation refused)

    void bm_learning_ack(1: i32 cxt, 2: i32 list_id, 3: i64 buffer_id, 4: list<i32> samples)
        throws (1: InvalidLearnOperation refused)
    void bm_learning_ack_buffer(1: i32 cxt, 2: i32 list_id, 3: i64 buffer_id)
        throws (1: InvalidLearnOperation refused)
    void bm_learning_set_timeout(1: i32 cxt, 2: i32 list_id, 3: i32 timeout_ms)
        throws (1: InvalidLearnOperation refused)
    void bm_learning_set_buffer_size(1: i32 cxt, 2: i32 list_id, 3: i32 n_samples)
        throws (1: InvalidLearnOperation refused)

    void bm_load_new_config(1: string config) throws (1: InvalidSwapOperation refused)
    void bm_swap_configs() throws (1: InvalidSwapOperation refused)

    void bm_meter_array_set_rates(1: i32 cxt, 2: string meter, 3: Rates rates)
        throws (1: InvalidMeterOperation refused)
    void bm_meter_set_rates(1: i32 cxt, 2: string meter, 3: i32 index, 4: Rates rates)
        throws (1: InvalidMeterOperation refused)
    Rates bm_meter_get_rates(1: i32 cxt, 2: string meter, 3: i32 index) throws (1: InvalidMeterOperation refused)

    i64 bm_register_read(1: i32 cxt, 2: string array, 3: i32 index) throws (1: InvalidRegisterOperation refused)
    list<i64> bm_register_read_all(1: i32 cxt, 2: string array) throws (1: InvalidRegisterOperation refused)
    void bm_register_write(1: i32 cxt, 2: string array, 3: i32 index, 4: i64 value)
        throws (1: InvalidRegisterOperation refused)
    void bm_register_write_range(1: i32 cxt, 2: string array, 3: i32 start, 4: i32 end_, 5: i64 value)
        throws (1: InvalidRegisterOperation refused)
    void bm_register_reset(1: i32 cxt, 2: string array) throws (1: InvalidRegisterOperation refused)

    void bm_parse_vset_add(1: i32 cxt, 2: string vset, 3: binary value) throws (1: InvalidParseVSetOperation refused)
    void bm_parse_vset_remove(1: i32 cxt, 2: string vset, 3: binary value)
        throws (1: InvalidParseVSetOperation refused)
    list<binary> bm_parse_vset_get(1: i32 cxt, 2: string vset) throws (1: InvalidParseVSetOperation refused)
    void bm_parse_vset_clear(1: i32 cxt, 2: string vset) throws (1: InvalidParseVSetOperation refused)

    void bm_dev_mgr_add_port(1: string iface_name, 2: i32 port, 3: string pcap)
        throws (1: InvalidDevMgrOperation refused)
    void bm_dev_mgr_remove_port(1: i32 port) throws (1: InvalidDevMgrOperation refused)
    list<Port> bm_dev_mgr_show_ports() throws (1: InvalidDevMgrOperation refused)

    Config bm_mgmt_get_info()
    void bm_set_crc16_custom_parameters(1: i32 cxt, 2: string calculation, 3: Crc16 parameters)
        throws (1: InvalidCrcOperation refused)
    void bm_set_crc32_custom_parameters(1: i32 cxt, 2: string calculation, 3: Crc32 parameters)
        throws (1: InvalidCrcOperation refused)
    void bm_set_toeplitz_hash_key(1: i32 cxt, 2: string calculation, 3: binary key)
        throws (1: InvalidToeplitzHashOperation refused)
    void bm_reset_state()
    string bm_get_config()
    binary bm_get_config_md5()
    i32 bm_get_id_from_name(1: i32 cxt, 2: ResourceType sort, 3: string name) throws (1: InvalidIdLookup refused)
    string bm_serialize_state()
}

enum InvalidMcOperationCode { TABLE_FULL = 1, INVALID_MGID = 2, INVALID_MGRP_HANDLE = 3, INVALID_L1_HANDLE = 4,
    ERROR = 5 }
exception InvalidMcOperation { 1: InvalidMcOperationCode code }

service multicast_groups {
    i32 bm_mc_mgrp_create(1: i32 cxt, 2: i32 mgid) throws (1: InvalidMcOperation refused)
    void bm_mc_mgrp_destroy(1: i32 cxt, 2: i32 group) throws (1: InvalidMcOperation refused)
    void bm_mc_node_associate(1: i32 cxt, 2: i32 group, 3: i32 node) throws (1: InvalidMcOperation refused)
    void bm_mc_node_dissociate(1: i32 cxt, 2: i32 group, 3: i32 node) throws (1: InvalidMcOperation refused)
    void bm_mc_node_destroy(1: i32 cxt, 2: i32 node) throws (1: InvalidMcOperation refused)
    string bm_mc_get_entries(1: i32 cxt) throws (1: InvalidMcOperation refused)
}

service simple_pre extends multicast_groups {
    i32 bm_mc_node_create(1: i32 cxt, 2: i32 rid, 3: string ports) throws (1: InvalidMcOperation refused)
    void bm_mc_node_update(1: i32 cxt, 2: i32 node, 3: string ports) throws (1: InvalidMcOperation refused)
}

service simple_pre_lag extends multicast_groups {
    i32 bm_mc_node_create(1: i32 cxt, 2: i32 rid, 3: string ports, 4: string lags)
        throws (1: InvalidMcOperation refused)
    void bm_mc_node_update(1: i32 cxt, 2: i32 node, 3: string ports, 4: string lags)
        throws (1: InvalidMcOperation refused)
    void bm_mc_set_lag_membership(1: i32 cxt, 2: i16 lag, 3: string ports) throws (1: InvalidMcOperation refused)
}

struct Session { 1: i32 port, 2: i32 mgid }
enum InvalidMirroringOperationCode { SESSION_NOT_FOUND = 1 }
exception InvalidMirroringOperation { 1: InvalidMirroringOperationCode code }

service simple_switch {
    i32 mirroring_mapping_add(1: i32 session, 2: i32 port)
    i32 mirroring_mapping_delete(1: i32 session)
    i32 mirroring_mapping_get_egress_port(1: i32 session)
    void mirroring_session_add(1: i32 session, 2: Session config) throws (1: InvalidMirroringOperation refused)
    void mirroring_session_delete(1: i32 session) throws (1: InvalidMirroringOperation refused)
    Session mirroring_session_get(1: i32 session) throws (1: InvalidMirroringOperation refused)
    i32 set_egress_priority_queue_depth(1: i32 port, 2: i32 priority, 3: i32 depth)
    i32 set_egress_queue_depth(1: i32 port, 2: i32 depth)
    i32 set_all_egress_queue_depths(1: i32 depth)
    i32 set_egress_priority_queue_rate(1: i32 port, 2: i32 priority, 3: i64 rate_pps)
    i32 set_egress_queue_rate(1: i32 port, 2: i64 rate_pps)
    i32 set_all_egress_queue_rates(1: i64 rate_pps)
    i64 get_time_elapsed_us()
    i64 get_time_since_epoch_us()
}
