//! The C ABI of Brevity: `libbrevity.so`, `libbrevity.a` and `brevity.h`.
//!
//! `include/brevity.h` documents every function for C callers; the items here document only what Rust needs.
//! `install.sh` installs the libraries under their final names, with the header, a pkg-config file and a
//! CMake package.
//!
//! Every function keeps these rules. No panic leaves it ([`brv_status::Panic`]). Every pointer is checked for
//! NULL and alignment before use. Its `# Safety` section states what cannot be checked and the caller must
//! guarantee.
#![allow(non_camel_case_types, reason = "types have their C names")]

mod averages_started;
mod boundary;
mod callback;
mod compressed;
mod config;
mod dense;
mod element;
mod exchange;
mod exchange_add;
mod exchange_choice;
mod exchange_course;
mod exchange_going;
mod exchange_state;
mod exchange_steps;
mod exchange_typed;
mod failure;
mod feedback;
mod group;
mod grow;
mod join;
mod lent;
mod log;
mod memory;
mod messages;
mod messages_started;
mod notice;
mod one_sided;
mod options;
mod plan;
mod policy;
mod request;
mod saved;
mod schedule;
mod server;
mod server_config;
mod server_leaving;
mod server_started;
mod server_state;
mod split;
mod state;
mod status;
mod version;
mod wait;

pub use averages_started::{brv_iexchange_average, brv_igtopk_average, brv_ilow_rank_average};
pub use compressed::*;
pub use config::{brv_all_gather_function, brv_config, brv_id};
pub use dense::*;
pub use element::{brv_reduction, brv_type};
pub use exchange::{
    brv_exchange, brv_exchange_average, brv_exchange_free, brv_exchange_new, brv_exchange_residual,
    brv_exchange_set_density,
};
pub use exchange_add::{brv_exchange_add, brv_exchange_add_by_rules, brv_exchange_add_text};
pub use exchange_choice::brv_exchange_choice;
pub use exchange_course::{
    brv_exchange_set_schedule, brv_exchange_set_seed, brv_exchange_set_steps, brv_exchange_steps,
};
pub use exchange_going::{brv_exchange_go_on, brv_exchange_keep_going, brv_exchange_share_state};
pub use exchange_state::{
    brv_exchange_load, brv_exchange_load_of, brv_exchange_rejoin, brv_exchange_save, brv_exchange_saved_size,
    brv_exchange_take_over,
};
pub use exchange_steps::{
    brv_bucket_report, brv_exchange_average_over_participants, brv_exchange_begin, brv_exchange_begin_empty,
    brv_exchange_finish, brv_exchange_ready, brv_exchange_report, brv_exchange_set_bucket_bytes,
    brv_exchange_step_empty,
};
pub use exchange_typed::{
    brv_exchange_average_typed, brv_exchange_finish_typed, brv_exchange_go_on_typed,
    brv_exchange_ready_typed, brv_exchange_step_empty_typed, brv_iexchange_average_typed,
};
pub use failure::{brv_last_error, brv_last_error_rank};
pub use feedback::{
    brv_feedback, brv_feedback_free, brv_feedback_new, brv_feedback_rejoin, brv_feedback_residual,
    brv_gtopk_average, brv_low_rank_average,
};
pub use group::{
    brv_group, brv_group_abort, brv_group_free, brv_group_rank, brv_group_size, brv_group_solo,
    brv_group_transport,
};
pub use grow::{brv_group_first_rank, brv_group_first_size, brv_group_grow, brv_group_has_returned};
pub use join::{brv_group_join, brv_id_new};
pub use log::{brv_log_function, brv_log_level, brv_log_to_callback, brv_log_to_stderr};
pub use messages::{brv_message, brv_probe, brv_recv, brv_send, brv_send_recv, brv_try_probe, brv_try_send};
pub use messages_started::{brv_iprobe, brv_irecv, brv_isend};
pub use notice::brv_request_function;
pub use one_sided::{
    brv_flush, brv_get, brv_memory, brv_memory_free, brv_memory_key, brv_memory_register, brv_put,
    brv_remote_memory, brv_remote_memory_free, brv_remote_memory_open,
};
pub use options::{algorithm_name, brv_options};
pub use plan::{
    brv_plan, brv_plan_choice, brv_plan_count, brv_plan_free, brv_plan_get_row, brv_plan_new,
    brv_plan_reason, brv_plan_row, brv_summand,
};
pub use policy::{brv_method, brv_momentum, brv_policy, brv_put_back, brv_selection};
pub use request::{
    brv_request, brv_request_cancel, brv_request_free, brv_request_message, brv_request_on_end,
    brv_request_test,
};
pub use saved::{
    brv_feedback_load, brv_feedback_load_of, brv_feedback_save, brv_feedback_saved_size,
    brv_feedback_take_over,
};
pub use schedule::{brv_schedule, brv_schedule_density, brv_warm_up};
pub use server::{
    brv_server, brv_server_add, brv_server_begin, brv_server_fetch, brv_server_free, brv_server_is_worker,
    brv_server_new, brv_server_pull, brv_server_push, brv_server_set_density, brv_server_take_step,
};
pub use server_config::brv_server_config;
pub use server_leaving::{brv_server_leave, brv_server_serve};
pub use server_started::{brv_iserver_fetch, brv_iserver_pull, brv_iserver_take_step};
pub use server_state::{
    brv_server_confirm_saved, brv_server_get_statistics, brv_server_model, brv_server_residual,
    brv_server_resume, brv_server_save, brv_server_shard, brv_server_statistics, brv_server_step,
};
pub use split::{
    brv_group_duplicate, brv_group_hosts, brv_group_set_timeout, brv_group_shrink, brv_group_shrink_any,
    brv_group_split, brv_group_world_rank,
};
pub use state::{
    brv_group_settings, brv_group_statistics, brv_group_status, brv_setting_function, brv_statistics,
};
pub use status::{brv_status, brv_status_string};
pub use version::{brv_abi_version, brv_version};
pub use wait::{
    brv_group_prepare_sleep, brv_group_progress, brv_request_wait, brv_request_wait_all, brv_request_wait_any,
};
