//! Twins of inline functions of UCX's headers, which the library does not export.
//!
//! `ci/ucx-bindings.sh --check` compares the C originals with the figures tested below.

use std::ffi::c_void;

use crate::{
    UCP_API_MAJOR, UCP_API_MINOR, UCP_DATATYPE_CONTIG, UCP_DATATYPE_IOV, UCP_DATATYPE_SHIFT, Ucp,
    ucp_config_t, ucp_context_h, ucp_datatype_t, ucp_params_t, ucs_status_ptr_t, ucs_status_t,
};

/// The datatype of contiguous elements of `element_bytes` each; `count` is then in elements.
///
/// This is the default with one byte, when a request names no datatype.
pub const fn ucp_dt_make_contig(element_bytes: usize) -> ucp_datatype_t {
    ((element_bytes as ucp_datatype_t) << UCP_DATATYPE_SHIFT) | UCP_DATATYPE_CONTIG
}

/// The datatype of a list of [`ucp_dt_iov_t`](crate::ucp_dt_iov_t); `count` is then in list entries.
///
/// The list itself must outlive the operation, as the buffers do.
pub const fn ucp_dt_make_iov() -> ucp_datatype_t {
    UCP_DATATYPE_IOV
}

/// Whether a call returned an error instead of a request (`UCS_PTR_IS_ERR`).
#[inline]
pub fn ucs_ptr_is_err(pointer: ucs_status_ptr_t) -> bool {
    pointer as usize >= FIRST_ERROR
}

/// Whether a call returned a request, to be freed once it is done (`UCS_PTR_IS_PTR`).
///
/// A null pointer is neither a request nor an error: the operation is complete and no callback follows.
#[inline]
pub fn ucs_ptr_is_ptr(pointer: ucs_status_ptr_t) -> bool {
    !pointer.is_null() && (pointer as usize) < FIRST_ERROR
}

/// The status that a null or error pointer holds; meaningless for a request (`UCS_PTR_RAW_STATUS`).
#[inline]
pub fn ucs_ptr_raw_status(pointer: ucs_status_ptr_t) -> ucs_status_t {
    ucs_status_t(pointer as isize as i8)
}

/// The status of what a call returned: in progress for a request (`UCS_PTR_STATUS`).
#[inline]
pub fn ucs_ptr_status(pointer: ucs_status_ptr_t) -> ucs_status_t {
    if ucs_ptr_is_ptr(pointer) { ucs_status_t::UCS_INPROGRESS } else { ucs_ptr_raw_status(pointer) }
}

/// The pointer that stands for a status (`UCS_STATUS_PTR`).
#[inline]
pub fn ucs_status_ptr(status: ucs_status_t) -> ucs_status_ptr_t {
    status.0 as isize as *mut c_void
}

/// Whether a status is an error; `UCS_OK` and `UCS_INPROGRESS` are not (`UCS_STATUS_IS_ERR`).
#[inline]
pub const fn ucs_status_is_err(status: ucs_status_t) -> bool {
    status.0 < 0
}

impl Ucp {
    /// Makes a context as a program compiled against UCX 1.13 does.
    ///
    /// # Safety
    ///
    /// As for [`Ucp::ucp_init_version`].
    pub unsafe fn ucp_init(
        &self,
        params: *const ucp_params_t,
        config: *const ucp_config_t,
        context: *mut ucp_context_h,
    ) -> ucs_status_t {
        // SAFETY: the caller promises what `ucp_init_version` asks for; the version is the one
        // whose structs `bindings` declares.
        unsafe { self.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, params, config, context) }
    }
}

/// The lowest address that is an error; 100 values below zero are set aside for statuses.
const FIRST_ERROR: usize = ucs_status_t::UCS_ERR_LAST.0 as isize as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(value: isize) -> ucs_status_ptr_t {
        value as *mut c_void
    }

    #[test]
    fn datatypes_have_the_numbers_of_the_headers() {
        assert_eq!(ucp_dt_make_contig(1), 8);
        assert_eq!(ucp_dt_make_contig(4096), 32768);
        assert_eq!(ucp_dt_make_iov(), 2);
    }

    #[test]
    fn pointers_split_into_done_request_and_error() {
        for (value, is_err, is_ptr) in [
            (0, false, false),
            (1, false, true),
            (4096, false, true),
            (-101, false, true),
            (-100, true, false),
            (-1, true, false),
        ] {
            assert_eq!(ucs_ptr_is_err(pointer(value)), is_err, "{value}");
            assert_eq!(ucs_ptr_is_ptr(pointer(value)), is_ptr, "{value}");
        }
    }

    #[test]
    fn statuses_come_out_of_pointers() {
        assert_eq!(ucs_ptr_raw_status(pointer(0)), ucs_status_t::UCS_OK);
        assert_eq!(ucs_ptr_raw_status(pointer(-16)), ucs_status_t::UCS_ERR_CANCELED);
        assert_eq!(ucs_ptr_status(pointer(0)), ucs_status_t::UCS_OK);
        assert_eq!(ucs_ptr_status(pointer(4096)), ucs_status_t::UCS_INPROGRESS);
        assert_eq!(ucs_ptr_status(pointer(-25)), ucs_status_t::UCS_ERR_CONNECTION_RESET);
    }

    #[test]
    fn every_status_survives_the_way_through_a_pointer() {
        for value in -100..=0 {
            let status = ucs_status_t(value);
            assert_eq!(ucs_ptr_status(ucs_status_ptr(status)), status);
            assert_eq!(ucs_status_is_err(status), value < 0);
        }
        assert!(!ucs_status_is_err(ucs_status_t::UCS_INPROGRESS));
    }
}
