"""The Thrift interfaces of BMv2 1.15: services `standard`, `simple_pre`, `simple_pre_lag` and `simple_switch`, in the
notation of idl.py. Names, types and numbers are those of BMv2's standard.thrift, simple_pre.thrift,
simple_pre_lag.thrift and simple_switch.thrift; clients of every version since 1.0 know a subset."""

from __future__ import annotations

from functools import cache

from switchml.control.thrift.idl import Interface

STANDARD = """
type Handle i32
type Data list<binary>

enum MatchKind EXACT=0 LPM TERNARY VALID RANGE
struct Exact binary key
struct Lpm binary key, i32 prefix_length
struct Ternary binary key, binary mask
struct Valid bool key
struct Range binary start, binary end
struct MatchParam MatchKind type, Exact exact, Lpm lpm, Ternary ternary, Valid valid, Range range
type Match list<MatchParam>
struct Options i32 priority

struct CounterValue i64 bytes, i64 packets
struct Rate double units_per_micros, i32 burst_size
type Rates list<Rate>

enum InvalidTableOperationCode TABLE_FULL INVALID_HANDLE EXPIRED_HANDLE COUNTERS_DISABLED METERS_DISABLED
    AGEING_DISABLED INVALID_TABLE_NAME INVALID_ACTION_NAME WRONG_TABLE_TYPE INVALID_MBR_HANDLE MBR_STILL_USED
    MBR_ALREADY_IN_GRP MBR_NOT_IN_GRP INVALID_GRP_HANDLE GRP_STILL_USED EMPTY_GRP DUPLICATE_ENTRY BAD_MATCH_KEY
    INVALID_METER_OPERATION DEFAULT_ACTION_IS_CONST DEFAULT_ENTRY_IS_CONST NO_DEFAULT_ENTRY
    INVALID_ACTION_PROFILE_NAME NO_ACTION_PROFILE_SELECTION IMMUTABLE_TABLE_ENTRIES BAD_ACTION_DATA NO_TABLE_KEY
    ERROR=100
exception InvalidTableOperation
enum InvalidCounterOperationCode INVALID_COUNTER_NAME INVALID_INDEX ERROR
exception InvalidCounterOperation
enum InvalidSwapOperationCode CONFIG_SWAP_DISABLED ONGOING_SWAP NO_ONGOING_SWAP
exception InvalidSwapOperation
enum InvalidMeterOperationCode INVALID_METER_NAME INVALID_INDEX BAD_RATES_LIST INVALID_INFO_RATE_VALUE
    INVALID_BURST_SIZE_VALUE ERROR
exception InvalidMeterOperation
enum InvalidRegisterOperationCode INVALID_REGISTER_NAME INVALID_INDEX ERROR
exception InvalidRegisterOperation
enum InvalidParseVSetOperationCode INVALID_PARSE_VSET_NAME ERROR
exception InvalidParseVSetOperation
enum InvalidLearnOperationCode INVALID_LIST_ID INVALID_LIST_NAME ERROR
exception InvalidLearnOperation
enum InvalidDevMgrOperationCode ERROR
exception InvalidDevMgrOperation
enum InvalidCrcOperationCode INVALID_CALCULATION_NAME WRONG_TYPE_CALCULATION INVALID_CONFIG
exception InvalidCrcOperation
enum InvalidToeplitzHashOperationCode INVALID_CALCULATION_NAME WRONG_TYPE_CALCULATION INVALID_KEY
exception InvalidToeplitzHashOperation
enum InvalidIdLookupCode INVALID_RESOURCE_TYPE=0 INVALID_RESOURCE_NAME=1
exception InvalidIdLookup

struct Port i32 port_num, string iface_name, bool is_up, map<string,string> extra
struct Crc16 i16 polynomial, i16 initial_remainder, i16 final_xor_value, bool data_reflected, bool remainder_reflected
struct Crc32 i32 polynomial, i32 initial_remainder, i32 final_xor_value, bool data_reflected, bool remainder_reflected
enum ActionKind NONE=0 ACTION_DATA MBR_HANDLE GRP_HANDLE
struct ActionEntry ActionKind action_type, string action_name, Data action_data, Handle mbr_handle, Handle grp_handle
struct Life i32 timeout_ms, i32 time_since_hit_ms
struct Entry Match match_key, Options options, Handle entry_handle, ActionEntry action_entry, Life life
struct Member Handle mbr_handle, string action_name, Data action_data
struct Group Handle grp_handle, list<Handle> mbr_handles
struct Config i64 device_id, i32 thrift_port, string notifications_socket, string elogger_socket, string debugger_socket
enum ResourceType MATCH_TABLE=0 ACTION_PROFILE COUNTER METER REGISTER LEARNING_LIST

service standard
bm_mt_get_num_entries(i32 cxt, string table) -> i64 ! InvalidTableOperation
bm_mt_clear_entries(i32 cxt, string table, bool reset_default) ! InvalidTableOperation
bm_mt_add_entry(i32 cxt, string table, Match match, string action, Data data, Options options) -> Handle
    ! InvalidTableOperation
bm_mt_set_default_action(i32 cxt, string table, string action, Data data) ! InvalidTableOperation
bm_mt_reset_default_entry(i32 cxt, string table) ! InvalidTableOperation
bm_mt_delete_entry(i32 cxt, string table, Handle entry) ! InvalidTableOperation
bm_mt_modify_entry(i32 cxt, string table, Handle entry, string action, Data data) ! InvalidTableOperation
bm_mt_set_entry_ttl(i32 cxt, string table, Handle entry, i32 timeout_ms) ! InvalidTableOperation

bm_mt_act_prof_add_member(i32 cxt, string profile, string action, Data data) -> Handle ! InvalidTableOperation
bm_mt_act_prof_delete_member(i32 cxt, string profile, Handle member) ! InvalidTableOperation
bm_mt_act_prof_modify_member(i32 cxt, string profile, Handle member, string action, Data data) ! InvalidTableOperation
bm_mt_act_prof_create_group(i32 cxt, string profile) -> Handle ! InvalidTableOperation
bm_mt_act_prof_delete_group(i32 cxt, string profile, Handle group) ! InvalidTableOperation
bm_mt_act_prof_add_member_to_group(i32 cxt, string profile, Handle member, Handle group) ! InvalidTableOperation
bm_mt_act_prof_remove_member_from_group(i32 cxt, string profile, Handle member, Handle group) ! InvalidTableOperation
bm_mt_act_prof_get_members(i32 cxt, string profile) -> list<Member> ! InvalidTableOperation
bm_mt_act_prof_get_member(i32 cxt, string profile, Handle member) -> Member ! InvalidTableOperation
bm_mt_act_prof_get_groups(i32 cxt, string profile) -> list<Group> ! InvalidTableOperation
bm_mt_act_prof_get_group(i32 cxt, string profile, Handle group) -> Group ! InvalidTableOperation

bm_mt_indirect_add_entry(i32 cxt, string table, Match match, Handle member, Options options) -> Handle
    ! InvalidTableOperation
bm_mt_indirect_modify_entry(i32 cxt, string table, Handle entry, Handle member) ! InvalidTableOperation
bm_mt_indirect_delete_entry(i32 cxt, string table, Handle entry) ! InvalidTableOperation
bm_mt_indirect_set_entry_ttl(i32 cxt, string table, Handle entry, i32 timeout_ms) ! InvalidTableOperation
bm_mt_indirect_set_default_member(i32 cxt, string table, Handle member) ! InvalidTableOperation
bm_mt_indirect_reset_default_entry(i32 cxt, string table) ! InvalidTableOperation
bm_mt_indirect_ws_add_entry(i32 cxt, string table, Match match, Handle group, Options options) -> Handle
    ! InvalidTableOperation
bm_mt_indirect_ws_modify_entry(i32 cxt, string table, Handle entry, Handle group) ! InvalidTableOperation
bm_mt_indirect_ws_set_default_group(i32 cxt, string table, Handle group) ! InvalidTableOperation

bm_mt_read_counter(i32 cxt, string table, Handle entry) -> CounterValue ! InvalidTableOperation
bm_mt_reset_counters(i32 cxt, string table) ! InvalidTableOperation
bm_mt_write_counter(i32 cxt, string table, Handle entry, CounterValue value) ! InvalidTableOperation
bm_mt_set_meter_rates(i32 cxt, string table, Handle entry, Rates rates) ! InvalidTableOperation
bm_mt_get_meter_rates(i32 cxt, string table, Handle entry) -> Rates ! InvalidTableOperation
bm_mt_get_entries(i32 cxt, string table) -> list<Entry> ! InvalidTableOperation
bm_mt_get_entry(i32 cxt, string table, Handle entry) -> Entry ! InvalidTableOperation
bm_mt_get_default_entry(i32 cxt, string table) -> ActionEntry ! InvalidTableOperation
bm_mt_get_entry_from_key(i32 cxt, string table, Match match, Options options) -> Entry ! InvalidTableOperation

bm_counter_read(i32 cxt, string counter, i32 index) -> CounterValue ! InvalidCounterOperation
bm_counter_reset_all(i32 cxt, string counter) ! InvalidCounterOperation
bm_counter_write(i32 cxt, string counter, i32 index, CounterValue value) ! InvalidCounterOperation

bm_learning_ack(i32 cxt, i32 list_id, i64 buffer_id, list<i32> samples) ! InvalidLearnOperation
bm_learning_ack_buffer(i32 cxt, i32 list_id, i64 buffer_id) ! InvalidLearnOperation
bm_learning_set_timeout(i32 cxt, i32 list_id, i32 timeout_ms) ! InvalidLearnOperation
bm_learning_set_buffer_size(i32 cxt, i32 list_id, i32 n_samples) ! InvalidLearnOperation

bm_load_new_config(string config) ! InvalidSwapOperation
bm_swap_configs() ! InvalidSwapOperation

bm_meter_array_set_rates(i32 cxt, string meter, Rates rates) ! InvalidMeterOperation
bm_meter_set_rates(i32 cxt, string meter, i32 index, Rates rates) ! InvalidMeterOperation
bm_meter_get_rates(i32 cxt, string meter, i32 index) -> Rates ! InvalidMeterOperation

bm_register_read(i32 cxt, string register, i32 index) -> i64 ! InvalidRegisterOperation
bm_register_read_all(i32 cxt, string register) -> list<i64> ! InvalidRegisterOperation
bm_register_write(i32 cxt, string register, i32 index, i64 value) ! InvalidRegisterOperation
bm_register_write_range(i32 cxt, string register, i32 start, i32 end, i64 value) ! InvalidRegisterOperation
bm_register_reset(i32 cxt, string register) ! InvalidRegisterOperation

bm_parse_vset_add(i32 cxt, string vset, binary value) ! InvalidParseVSetOperation
bm_parse_vset_remove(i32 cxt, string vset, binary value) ! InvalidParseVSetOperation
bm_parse_vset_get(i32 cxt, string vset) -> list<binary> ! InvalidParseVSetOperation
bm_parse_vset_clear(i32 cxt, string vset) ! InvalidParseVSetOperation

bm_dev_mgr_add_port(string interface, i32 port, string pcap) ! InvalidDevMgrOperation
bm_dev_mgr_remove_port(i32 port) ! InvalidDevMgrOperation
bm_dev_mgr_show_ports() -> list<Port> ! InvalidDevMgrOperation

bm_mgmt_get_info() -> Config
bm_set_crc16_custom_parameters(i32 cxt, string calculation, Crc16 parameters) ! InvalidCrcOperation
bm_set_crc32_custom_parameters(i32 cxt, string calculation, Crc32 parameters) ! InvalidCrcOperation
bm_set_toeplitz_hash_key(i32 cxt, string calculation, binary key) ! InvalidToeplitzHashOperation
bm_reset_state()
bm_get_config() -> string
bm_get_config_md5() -> binary
bm_get_id_from_name(i32 cxt, ResourceType sort, string name) -> i32 ! InvalidIdLookup
bm_serialize_state() -> string
"""

MULTICAST_ERRORS = """
enum InvalidMcOperationCode TABLE_FULL INVALID_MGID INVALID_MGRP_HANDLE INVALID_L1_HANDLE ERROR
exception InvalidMcOperation
"""

_GROUPS = """
bm_mc_mgrp_create(i32 cxt, i32 mgid) -> i32 ! InvalidMcOperation
bm_mc_mgrp_destroy(i32 cxt, i32 group) ! InvalidMcOperation
bm_mc_node_associate(i32 cxt, i32 group, i32 node) ! InvalidMcOperation
bm_mc_node_dissociate(i32 cxt, i32 group, i32 node) ! InvalidMcOperation
bm_mc_node_destroy(i32 cxt, i32 node) ! InvalidMcOperation
bm_mc_get_entries(i32 cxt) -> string ! InvalidMcOperation
"""

SIMPLE_PRE = f"""
service simple_pre
{_GROUPS}
bm_mc_node_create(i32 cxt, i32 rid, string ports) -> i32 ! InvalidMcOperation
bm_mc_node_update(i32 cxt, i32 node, string ports) ! InvalidMcOperation
"""

SIMPLE_PRE_LAG = f"""
service simple_pre_lag
{_GROUPS}
bm_mc_node_create(i32 cxt, i32 rid, string ports, string lags) -> i32 ! InvalidMcOperation
bm_mc_node_update(i32 cxt, i32 node, string ports, string lags) ! InvalidMcOperation
bm_mc_set_lag_membership(i32 cxt, i16 lag, string ports) ! InvalidMcOperation
"""

SIMPLE_SWITCH = """
struct Session i32 port, i32 mgid
enum InvalidMirroringOperationCode SESSION_NOT_FOUND
exception InvalidMirroringOperation

service simple_switch
mirroring_mapping_add(i32 session, i32 port) -> i32
mirroring_mapping_delete(i32 session) -> i32
mirroring_mapping_get_egress_port(i32 session) -> i32
mirroring_session_add(i32 session, Session config) ! InvalidMirroringOperation
mirroring_session_delete(i32 session) ! InvalidMirroringOperation
mirroring_session_get(i32 session) -> Session ! InvalidMirroringOperation
set_egress_priority_queue_depth(i32 port, i32 priority, i32 depth) -> i32
set_egress_queue_depth(i32 port, i32 depth) -> i32
set_all_egress_queue_depths(i32 depth) -> i32
set_egress_priority_queue_rate(i32 port, i32 priority, i64 rate_pps) -> i32
set_egress_queue_rate(i32 port, i64 rate_pps) -> i32
set_all_egress_queue_rates(i64 rate_pps) -> i32
get_time_elapsed_us() -> i64
get_time_since_epoch_us() -> i64
"""


@cache
def interface() -> Interface:
    """All four services."""
    texts = STANDARD, MULTICAST_ERRORS, SIMPLE_PRE, SIMPLE_PRE_LAG, SIMPLE_SWITCH
    return Interface().add("\n".join(texts))
