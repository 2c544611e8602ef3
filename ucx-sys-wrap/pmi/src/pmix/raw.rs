//! What is used of `pmix.h`, by hand: six functions, three structs, five constants. `ci/pmix-bindings.sh`
//! compares them with an installed header; they are alike in PMIx 3 to 5.

use std::ffi::{c_char, c_int};

/// `PMIX_MAX_NSLEN` + 1.
pub const NAMESPACE_BYTES: usize = 256;
/// `PMIX_MAX_KEYLEN` + 1.
pub const KEY_BYTES: usize = 512;

/// `pmix_status_t`; 0 is success.
pub type Status = c_int;
pub const SUCCESS: Status = 0;

/// `pmix_scope_t`.
pub type Scope = u8;
pub const PMIX_GLOBAL: Scope = 3;

/// `pmix_data_type_t`.
pub type DataType = u16;
pub const PMIX_BOOL: DataType = 1;
pub const PMIX_STRING: DataType = 3;

/// `PMIX_COLLECT_DATA`: a fence hands everybody's values to all servers.
pub const PMIX_COLLECT_DATA: &[u8] = b"pmix.collect";

/// `pmix_proc_t`: a rank of a job.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Process {
    pub nspace: [c_char; NAMESPACE_BYTES],
    pub rank: u32,
}

/// `pmix_value_t`: a value and its type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub kind: DataType,
    pub data: Data,
}

/// The union in `pmix_value_t`; its largest members have three words.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Data {
    pub flag: bool,
    pub string: *mut c_char,
    pub words: [u64; 3],
}

/// `pmix_info_t`: a named value that says more of what is asked.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub key: [c_char; KEY_BYTES],
    pub flags: u32,
    pub value: Value,
}

pub type Init = unsafe extern "C" fn(*mut Process, *mut Info, usize) -> Status;
pub type Finalize = unsafe extern "C" fn(*const Info, usize) -> Status;
pub type Put = unsafe extern "C" fn(Scope, *const c_char, *mut Value) -> Status;
pub type Commit = unsafe extern "C" fn() -> Status;
pub type Fence = unsafe extern "C" fn(*const Process, usize, *const Info, usize) -> Status;
pub type Get =
    unsafe extern "C" fn(*const Process, *const c_char, *const Info, usize, *mut *mut Value) -> Status;
pub type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;

impl Process {
    /// All zeroes.
    pub fn zeroed() -> Self {
        Self { nspace: [0; NAMESPACE_BYTES], rank: 0 }
    }
}

impl Value {
    /// A value of type `kind`; what the type does not use is zero.
    pub fn new(kind: DataType) -> Self {
        Self { kind, data: Data { words: [0; 3] } }
    }
}

impl Info {
    /// A flag that is set. `key` is cut where the field ends.
    pub fn flag(key: &[u8]) -> Self {
        let mut info = Self { key: [0; KEY_BYTES], flags: 0, value: Value::new(PMIX_BOOL) };
        for (place, &byte) in info.key.iter_mut().take(KEY_BYTES - 1).zip(key) {
            *place = byte as c_char;
        }
        info.value.data.flag = true;
        info
    }
}

/// The sizes and places that `ci/pmix-bindings.sh` asserts in C.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Process>() == 260 && offset_of!(Process, rank) == 256);
    assert!(size_of::<Value>() == 32 && offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && offset_of!(Info, flags) == 512 && offset_of!(Info, value) == 520);
};
