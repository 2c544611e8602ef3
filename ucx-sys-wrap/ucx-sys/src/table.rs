//! The table of UCX's functions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::Library;

use crate::bindings::prototypes;
use crate::*;

impl Ucp {
    /// The major, minor and release number of the library that runs, which is not that of the headers.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// The file that was loaded, with symbolic links resolved; what was asked for where `/proc` is missing.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// UCX's words for a status, such as `Request canceled`.
    pub fn status_text(&self, status: ucs_status_t) -> &'static str {
        // SAFETY: `ucs_status_string` takes any status, and formats those that it does not know.
        let text = unsafe { self.ucs_status_string(status) };
        // SAFETY: it returned a terminated string.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().unwrap_or("status with a broken text")
    }
}

type SetGlobal = unsafe extern "C" fn(*const c_char, *const c_char) -> ucs_status_t;
type GetGlobal = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> ucs_status_t;

/// Settings of the whole process. They belong to UCX's base library, not its interface, so a library may lack
/// them.
impl Ucp {
    /// Sets one, by its name without `UCX_`; returns whether UCX took it.
    pub fn set_global(&self, name: &CStr, value: &CStr) -> bool {
        // SAFETY: the type that UCX's `ucs/config/global_opts.h` gives it; the library is never unloaded.
        let set = unsafe { lookup::<SetGlobal>(&self._library, "ucs_global_opts_set_value") };
        // SAFETY: terminated strings that outlive the call, which parses them into a machine word that UCX
        // reads at any time.
        set.is_some_and(|set| unsafe { set(name.as_ptr(), value.as_ptr()) } == ucs_status_t::UCS_OK)
    }

    /// The value of one, by its name without `UCX_`.
    pub fn global(&self, name: &CStr) -> Option<CString> {
        // SAFETY: as above.
        let get = unsafe { lookup::<GetGlobal>(&self._library, "ucs_global_opts_get_value") }?;
        let mut value = [0u8; 128];
        // SAFETY: a terminated name, and as many bytes to write as are said.
        let status = unsafe { get(name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        let value = CStr::from_bytes_until_nul(&value).ok()?;
        (status == ucs_status_t::UCS_OK).then(|| value.to_owned())
    }
}

impl fmt::Debug for Ucp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ucp")
            .field("version", &self.version)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// The symbol's value as a function pointer of type `F`, or nothing where the library has none.
///
/// # Safety
///
/// `F` is the type of that function, and the library is never unloaded while the result is in use.
pub(crate) unsafe fn lookup<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller vouches for the type.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.ok().map(|symbol| *symbol)
}

/// Declares [`Ucp`] with one field and one method a function. The types are compared with those of
/// the headers when this crate is compiled.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;
    )*) => {
        /// UCX's functions, loaded at run time (see [`Ucp::load`]).
        ///
        /// Every method is `unsafe` under the rules of UCX's manual: handles are alive, pointers
        /// valid for as long as the operation (not the call) needs them, and a worker is entered by
        /// one thread at a time unless it was made with another thread mode. Panics must not leave
        /// callbacks.
        ///
        /// Holds nothing but pointers to code that is never unloaded: any thread may use it.
        pub struct Ucp {
            version: (u32, u32, u32),
            path: PathBuf,
            _library: ManuallyDrop<Library>,
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Ucp {
            /// Fills the table, or names every function that is missing.
            ///
            /// # Safety
            ///
            /// The library's functions have the types that UCX's headers give them.
            pub(crate) unsafe fn from_library(
                library: ManuallyDrop<Library>,
                path: PathBuf,
                version: (u32, u32, u32),
            ) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the caller vouches for the types; `ManuallyDrop` keeps the library loaded.
                    let $name = unsafe { lookup(&library, stringify!($name)) };
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok(Self { version, path, _library: library, $($name,)* }),
                    _ => Err(missing),
                }
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                ///
                /// See [`Ucp`].
                #[inline]
                #[allow(clippy::too_many_arguments, reason = "UCX's functions have as many as they have")]
                pub unsafe fn $name(&self, $($argument: $type),*) $(-> $result)? {
                    // SAFETY: the caller keeps the rules of UCX's manual for this function.
                    unsafe { (self.$name)($($argument),*) }
                }
            )*
        }

        $(const _: unsafe extern "C" fn($($type),*) $(-> $result)? = prototypes::$name;)*
    };
}

functions! {
    /// Reports the library's version; [`Ucp::version`] has it already.
    fn ucp_get_version(major: *mut c_uint, minor: *mut c_uint, release: *mut c_uint);
    /// The library's version as text, with the revision that it was built from.
    fn ucp_get_version_string() -> *const c_char;
    /// The text of a status; see [`Ucp::status_text`].
    fn ucs_status_string(status: ucs_status_t) -> *const c_char;

    /// Reads the configuration from the environment (`UCX_*`, and `PREFIX_UCX_*` under a prefix).
    fn ucp_config_read(
        env_prefix: *const c_char,
        file_name: *const c_char,
        config: *mut *mut ucp_config_t,
    ) -> ucs_status_t;
    /// Sets one value; the name goes without `UCX_`. Names that UCP does not know are kept for the
    /// transports, and one that nobody knows is not reported.
    fn ucp_config_modify(
        config: *mut ucp_config_t,
        name: *const c_char,
        value: *const c_char,
    ) -> ucs_status_t;
    /// Releases a configuration; contexts made from it keep their own copy.
    fn ucp_config_release(config: *mut ucp_config_t);
    /// Prints a configuration to a C stream.
    fn ucp_config_print(
        config: *const ucp_config_t,
        stream: *mut FILE,
        title: *const c_char,
        print_flags: ucs_config_print_flags_t,
    );

    /// Makes a context for a program compiled against the given version; see [`Ucp::ucp_init`].
    fn ucp_init_version(
        api_major: c_uint,
        api_minor: c_uint,
        params: *const ucp_params_t,
        config: *const ucp_config_t,
        context: *mut ucp_context_h,
    ) -> ucs_status_t;
    /// Destroys a context, after its workers and its mapped memory.
    fn ucp_cleanup(context: ucp_context_h);

    /// Makes a worker. The thread mode that it got may be weaker than asked for: query it.
    fn ucp_worker_create(
        context: ucp_context_h,
        params: *const ucp_worker_params_t,
        worker: *mut ucp_worker_h,
    ) -> ucs_status_t;
    /// Destroys a worker and the endpoints that are left. Their requests are not completed.
    fn ucp_worker_destroy(worker: ucp_worker_h);
    /// Reads the attributes named by `field_mask`: thread mode, address, name.
    fn ucp_worker_query(worker: ucp_worker_h, attributes: *mut ucp_worker_attr_t) -> ucs_status_t;
    /// The worker's address, to be sent to peers as bytes and released here.
    fn ucp_worker_get_address(
        worker: ucp_worker_h,
        address: *mut *mut ucp_address_t,
        address_bytes: *mut usize,
    ) -> ucs_status_t;
    /// Releases an address of `ucp_worker_get_address` or `ucp_worker_query`.
    fn ucp_worker_release_address(worker: ucp_worker_h, address: *mut ucp_address_t);
    /// Makes progress and calls callbacks; zero if there was nothing to do. Not from a callback.
    fn ucp_worker_progress(worker: ucp_worker_h) -> c_uint;
    /// The descriptor that becomes readable on events; needs `UCP_FEATURE_WAKEUP`, stays the worker's.
    fn ucp_worker_get_efd(worker: ucp_worker_h, descriptor: *mut c_int) -> ucs_status_t;
    /// Arms the descriptor. `UCS_ERR_BUSY` means: there are events, progress and try again.
    fn ucp_worker_arm(worker: ucp_worker_h) -> ucs_status_t;
    /// Wakes a thread that waits on the worker; the one call that any thread may make at any time.
    fn ucp_worker_signal(worker: ucp_worker_h) -> ucs_status_t;
    /// Sleeps until there is an event or a signal. No deadline.
    fn ucp_worker_wait(worker: ucp_worker_h) -> ucs_status_t;
    /// Completes all put and get operations of a worker, here and at the peers.
    fn ucp_worker_flush_nbx(
        worker: ucp_worker_h,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;

    /// Makes an endpoint to a worker's address. The connection is made with the first message.
    fn ucp_ep_create(
        worker: ucp_worker_h,
        params: *const ucp_ep_params_t,
        endpoint: *mut ucp_ep_h,
    ) -> ucs_status_t;
    /// Closes an endpoint: flushed, or at once with `UCP_EP_CLOSE_FLAG_FORCE`.
    fn ucp_ep_close_nbx(endpoint: ucp_ep_h, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    /// Completes all put and get operations of an endpoint, here and at the peer.
    fn ucp_ep_flush_nbx(endpoint: ucp_ep_h, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    /// Reads the attributes named by `field_mask`. Only bits of these headers: others write past the struct.
    fn ucp_ep_query(endpoint: ucp_ep_h, attributes: *mut ucp_ep_attr_t) -> ucs_status_t;

    /// Sends; complete when the buffer may be reused, which says nothing of the receiver.
    fn ucp_tag_send_nbx(
        endpoint: ucp_ep_h,
        buffer: *const c_void,
        count: usize,
        tag: ucp_tag_t,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
    /// Sends; complete when the receiver has matched the message as well.
    fn ucp_tag_send_sync_nbx(
        endpoint: ucp_ep_h,
        buffer: *const c_void,
        count: usize,
        tag: ucp_tag_t,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
    /// Receives the first message of any peer whose tag agrees under the mask.
    fn ucp_tag_recv_nbx(
        worker: ucp_worker_h,
        buffer: *mut c_void,
        count: usize,
        tag: ucp_tag_t,
        tag_mask: ucp_tag_t,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
    /// Looks for an unexpected message; null if there is none. With `remove`, it must then be received.
    fn ucp_tag_probe_nb(
        worker: ucp_worker_h,
        tag: ucp_tag_t,
        tag_mask: ucp_tag_t,
        remove: c_int,
        info: *mut ucp_tag_recv_info_t,
    ) -> ucp_tag_message_h;
    /// Receives a message that `ucp_tag_probe_nb` has removed.
    fn ucp_tag_msg_recv_nbx(
        worker: ucp_worker_h,
        buffer: *mut c_void,
        count: usize,
        message: ucp_tag_message_h,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;

    /// Calls a function, inside `ucp_worker_progress`, for every active message with an id.
    fn ucp_worker_set_am_recv_handler(
        worker: ucp_worker_h,
        param: *const ucp_am_handler_param_t,
    ) -> ucs_status_t;
    /// Sends a header and a payload to the handler of `id`. The header, too, must stay until this is
    /// complete.
    fn ucp_am_send_nbx(
        endpoint: ucp_ep_h,
        id: c_uint,
        header: *const c_void,
        header_bytes: usize,
        buffer: *const c_void,
        count: usize,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
    /// Receives the payload of a kept rendezvous descriptor. `count` is at least its length.
    fn ucp_am_recv_data_nbx(
        worker: ucp_worker_h,
        descriptor: *mut c_void,
        buffer: *mut c_void,
        count: usize,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
    /// Releases a kept rendezvous descriptor without receiving it; the sender's request completes.
    fn ucp_am_data_release(worker: ucp_worker_h, descriptor: *mut c_void);

    /// The status of a request; makes no progress by itself.
    fn ucp_request_check_status(request: *mut c_void) -> ucs_status_t;
    /// Asks for a request to be cancelled. It still has to complete, and may complete normally.
    fn ucp_request_cancel(worker: ucp_worker_h, request: *mut c_void);
    /// Gives a request back. While it is in progress, UCX goes on using the buffer.
    fn ucp_request_free(request: *mut c_void);

    /// Registers memory, or allocates it with `UCP_MEM_MAP_ALLOCATE`.
    fn ucp_mem_map(
        context: ucp_context_h,
        params: *const ucp_mem_map_params_t,
        memory: *mut ucp_mem_h,
    ) -> ucs_status_t;
    /// Deregisters memory, after every operation on it.
    fn ucp_mem_unmap(context: ucp_context_h, memory: ucp_mem_h) -> ucs_status_t;
    /// Reads the attributes named by `field_mask`: address, length, memory type.
    fn ucp_mem_query(memory: ucp_mem_h, attributes: *mut ucp_mem_attr_t) -> ucs_status_t;
    /// Packs the key with which a peer reaches the memory, to be sent as bytes.
    fn ucp_rkey_pack(
        context: ucp_context_h,
        memory: ucp_mem_h,
        buffer: *mut *mut c_void,
        buffer_bytes: *mut usize,
    ) -> ucs_status_t;
    /// Releases the bytes of `ucp_rkey_pack`.
    fn ucp_rkey_buffer_release(buffer: *mut c_void);
    /// Unpacks a peer's key for use on that endpoint. Its length is not passed: verify the bytes before.
    fn ucp_ep_rkey_unpack(
        endpoint: ucp_ep_h,
        buffer: *const c_void,
        key: *mut ucp_rkey_h,
    ) -> ucs_status_t;
    /// Destroys an unpacked key, before its endpoint is closed.
    fn ucp_rkey_destroy(key: ucp_rkey_h);
    /// Writes into a peer's memory; complete when the buffer may be reused. Flush to be sure of the peer.
    fn ucp_put_nbx(
        endpoint: ucp_ep_h,
        buffer: *const c_void,
        count: usize,
        remote_address: u64,
        key: ucp_rkey_h,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
    /// Reads from a peer's memory; complete when the bytes have arrived.
    fn ucp_get_nbx(
        endpoint: ucp_ep_h,
        buffer: *mut c_void,
        count: usize,
        remote_address: u64,
        key: ucp_rkey_h,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
}
