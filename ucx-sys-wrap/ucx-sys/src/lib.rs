//! Raw bindings to UCX's UCP interface, loaded at run time. Nothing else: no policy, no safety.
//!
//! The types and constants are those of the UCX 1.13 headers (`ci/ucx-bindings.sh` writes them). Later
//! versions only appended fields and constants, checked up to 1.22, so one binary runs with any 1.x from 1.13
//! on. No UCX is needed to build, and none to start: [`Ucp::load`] finds it or says why not.
//!
//! - [`Ucp`] is the table of functions; each keeps its C name and is a method.
//! - Parameter structs start as zeroes (`Default`). **UCX reads and writes only the fields that
//!   `field_mask` (in [`ucp_request_param_t`]: `op_attr_mask`) names**; a value without its bit is
//!   ignored silently. The masks are typed as the fields that hold them, so no casts are needed.
//! - [`ucs_status_t`], [`ucs_memory_type_t`], [`ucs_thread_mode_t`] and [`ucp_err_handling_mode_t`]
//!   are newtypes with constants, never Rust enums: a later library may return numbers that 1.13
//!   does not know. `UCS_MEMORY_TYPE_UNKNOWN` is left out, because its number changes between
//!   versions; leave the memory type unset instead.
//! - The inline functions and macros that matter have twins here, under their C names in lower case.
//!
//! What the functions promise is written in UCX's own manual, <https://openucx.readthedocs.io>.
//!
//! ```no_run
//! use brevity_ucx_sys::*;
//!
//! // SAFETY: the system's UCX is trusted to be one.
//! let ucp = unsafe { Ucp::load(None) }?;
//! let params = ucp_params_t {
//!     field_mask: UCP_PARAM_FIELD_FEATURES,
//!     features: UCP_FEATURE_TAG,
//!     ..Default::default()
//! };
//! let mut context = std::ptr::null_mut();
//! // SAFETY: `params` and `context` outlive the call; a null configuration means the default one.
//! let status = unsafe { ucp.ucp_init(&params, std::ptr::null(), &mut context) };
//! assert_eq!(status, ucs_status_t::UCS_OK);
//! // SAFETY: the context was made above and nothing was made from it.
//! unsafe { ucp.ucp_cleanup(context) };
//! # Ok::<(), LoadError>(())
//! ```

#[allow(missing_docs, non_camel_case_types, dead_code, clippy::undocumented_unsafe_blocks)]
mod bindings;
mod hooks;
mod inline;
mod load;
mod signals;
mod table;

pub use bindings::*;
pub use inline::*;
pub use load::LoadError;
pub use table::Ucp;

/// C's `FILE`, only ever behind a pointer.
#[repr(C)]
#[derive(Debug)]
pub struct FILE {
    _opaque: [u8; 0],
}

/// C's `struct sockaddr`, only ever behind a pointer: endpoints are made from worker addresses.
#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types)]
pub struct sockaddr {
    _opaque: [u8; 0],
}
