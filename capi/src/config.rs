//! How a process joins a job, as the program says it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

use brevity::transport::bootstrap::Choice;
use brevity::{Group, JobId, Join, Settings};

use crate::boundary::check;
use crate::callback::in_callback;
use crate::failure::Failure;
use crate::version::ABI_VERSION;

const MAGIC: u32 = 0x6272_7663;

/// What a number is that was left to the environment, or to its default.
const UNSET: i32 = -1;

/// The identifier of one job, as in C.
#[repr(C)]
pub struct brv_id {
    pub(crate) bytes: [u8; JobId::BYTES],
}

/// An all-gather of the program's own, as in C.
pub type brv_all_gather_function =
    Option<unsafe extern "C" fn(*const c_void, *mut c_void, usize, *mut c_void) -> c_int>;

/// How a process joins a job, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_config {
    size: u64,
    magic: u32,
    version: u32,
    rank: i32,
    world_size: i32,
    address: *const c_char,
    id: *const brv_id,
    all_gather: brv_all_gather_function,
    all_gather_data: *mut c_void,
    key: *const c_char,
    key_file: *const c_char,
    job: *const c_char,
    transport: *const c_char,
    network_interface: *const c_char,
    announce: *const c_char,
    host_id: *const c_char,
    join_timeout: f64,
    timeout: f64,
    shared_memory: i32,
    encrypt: i32,
    progress_thread: i32,
    first_port: u16,
    last_port: u16,
    place_of_return: *const c_char,
    incarnation: u32,
    any_order: u32,
    machine: *const c_char,
    algorithm: *const c_char,
    segment: u64,
    reserved: [u64; 3],
}

/// A config whose form is right. Its pointers stay those of the program.
pub(crate) struct Config(brv_config);

impl Config {
    /// Reads a config; NULL is one with nothing set.
    ///
    /// # Safety
    /// `config` is NULL, or points to at least 16 bytes that hold its size, magic and version. If these are
    /// those of [`brv_config`], the whole struct may be read. What its pointers point to lives as long as the
    /// result.
    pub(crate) unsafe fn read(config: *const brv_config) -> Result<Self, Failure> {
        if config.is_null() {
            return Ok(Self(UNSET_CONFIG));
        }
        check(config, "config")?;
        // SAFETY: not NULL and aligned; the caller of this function guarantees 16 bytes.
        let head = unsafe {
            let (magic, version) = (&raw const (*config).magic, &raw const (*config).version);
            ((&raw const (*config).size).read(), magic.read(), version.read())
        };
        let remedy = "begin with BRV_CONFIG_INIT";
        let wrong = |field: &str, found: String, expected: String| {
            Err(Failure::argument(format!("config.{field} is {found}, expected {expected}: {remedy}")))
        };
        let (size, magic, version) = head;
        if magic != MAGIC {
            return wrong("magic", format!("{magic:#x}"), format!("{MAGIC:#x}"));
        }
        if version != ABI_VERSION {
            return wrong("version", version.to_string(), ABI_VERSION.to_string());
        }
        if size != size_of::<brv_config>() as u64 {
            return wrong("size", size.to_string(), size_of::<brv_config>().to_string());
        }
        // SAFETY: it has the size of a config, so the caller of this function guarantees all of it.
        let config = unsafe { config.read() };
        if config.reserved != [0; 3] {
            return Err(Failure::argument(format!(
                "a reserved field of config is set, expected 0: {remedy}"
            )));
        }
        Ok(Self(config))
    }

    /// The group that it describes. Blocks until all ranks have joined.
    ///
    /// # Safety
    /// The pointers are NULL, or point to text that ends with a zero, an identifier, or a function of the
    /// given type.
    pub(crate) unsafe fn join(&self) -> Result<Group, Failure> {
        self.check_place()?;
        let (join, settings) = self.begin()?;
        // SAFETY: the caller of this function guarantees text.
        let join = unsafe { self.place(self.about_job(self.network(join)?)?) }?;
        // SAFETY: likewise.
        let join = join.settings(unsafe { self.settings(settings) }?);
        let Some(all_gather) = self.0.all_gather else { return Ok(join.join()?) };
        let world_size = join.world_size();
        Ok(join.join_with(|own| {
            // SAFETY: the caller of this function guarantees such a function.
            unsafe { gather(all_gather, own, world_size, self.0.all_gather_data) }
        })?)
    }

    /// A new identifier with this process as rank 0. The place to meet is not read: it may be where the
    /// identifier is written.
    ///
    /// # Safety
    /// As for [`join`](Self::join).
    pub(crate) unsafe fn make_id(&self) -> Result<JobId, Failure> {
        // SAFETY: the caller of this function guarantees text.
        let join = unsafe { self.network(Join::new(0, 2).names(&self.names(false))) }?;
        Ok(join.make_id()?)
    }

    /// This rank and the number of ranks, from the config or else the environment.
    fn begin(&self) -> Result<(Join, Settings), Failure> {
        let brv_config { rank, world_size, .. } = self.0;
        if (rank == UNSET) != (world_size == UNSET) {
            let (unset, set) = if rank == UNSET { ("rank", "world_size") } else { ("world_size", "rank") };
            return Err(Failure::setting(format!(
                "config.{unset} is not set beside config.{set}: set both, or neither for those of the \
                 environment"
            )));
        }
        if rank == UNSET {
            let join = Join::from_env().map_err(|error| self.in_environment(error.into()))?;
            return Ok((join.names(&self.names(true)), Settings::from_env()?));
        }
        let unsigned = |number: i32, field: &str, expected: &str| {
            u32::try_from(number)
                .map_err(|_| Failure::setting(format!("config.{field} is {number}: expected {expected}")))
        };
        let rank = unsigned(rank, "rank", "0 or more, or BRV_UNSET")?;
        let world_size = unsigned(world_size, "world_size", "1 or more, or BRV_UNSET")?;
        Ok((Join::new(rank, world_size).names(&self.names(false)), Settings::default()))
    }

    /// What errors call settings: by their fields, or, of those that come from the environment, only those
    /// that are set here.
    fn names(&self, is_from_env: bool) -> Vec<(&'static str, &'static str)> {
        let c = &self.0;
        let unset = f64::from(UNSET);
        let fields = [
            ("BREVITY_ANNOUNCE", "config.announce", !c.announce.is_null()),
            ("BREVITY_ENCRYPT", "config.encrypt", c.encrypt != UNSET),
            ("BREVITY_HOST_ID", "config.host_id", !c.host_id.is_null()),
            ("BREVITY_INCARNATION", "config.incarnation", c.incarnation > 0),
            ("BREVITY_INTERFACE", "config.network_interface", !c.network_interface.is_null()),
            ("BREVITY_JOB", "config.job", !c.job.is_null()),
            ("BREVITY_JOIN_TIMEOUT", "config.join_timeout", c.join_timeout != unset),
            ("BREVITY_KEY", "config.key", !c.key.is_null()),
            ("BREVITY_KEY_FILE", "config.key_file", !c.key_file.is_null()),
            ("BREVITY_MACHINE", "config.machine", !c.machine.is_null()),
            ("BREVITY_MASTER", "config.address", !c.address.is_null()),
            ("BREVITY_PORT_RANGE", "config.first_port to last_port", (c.first_port, c.last_port) != (0, 0)),
            ("BREVITY_RANK", "config.rank", c.rank != UNSET),
            ("BREVITY_RETURN", "config.place_of_return", !c.place_of_return.is_null()),
            ("BREVITY_SEGMENT", "config.segment", c.segment > 0),
            ("BREVITY_SHARED_MEMORY", "config.shared_memory", c.shared_memory != UNSET),
            ("BREVITY_TRANSPORT", "config.transport", !c.transport.is_null()),
            ("BREVITY_WORLD_SIZE", "config.world_size", c.world_size != UNSET),
        ];
        let named = fields.into_iter().filter(|(.., is_set)| *is_set || !is_from_env);
        named.map(|(variable, field, _)| (variable, field)).collect()
    }

    /// The fields that say where ranks meet and are set.
    fn places(&self) -> impl Iterator<Item = &'static str> {
        let config = &self.0;
        let places = [
            ("address", !config.address.is_null()),
            ("id", !config.id.is_null()),
            ("all_gather", config.all_gather.is_some()),
        ];
        places.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)
    }

    /// A failure of the environment, with the remedy for a config that says where ranks meet without saying
    /// which rank this is.
    fn in_environment(&self, failure: Failure) -> Failure {
        match self.places().next() {
            None => failure,
            Some(place) => failure.with_remedy(&format!(
                "beside config.{place}, set config.rank and config.world_size: without them the environment \
                 must describe a whole job"
            )),
        }
    }

    fn check_place(&self) -> Result<(), Failure> {
        let mut set = self.places();
        match (set.next(), set.next()) {
            (Some(first), Some(second)) => Err(Failure::setting(format!(
                "config.{second} is set beside config.{first}: expected only one place to meet"
            ))),
            _ => Ok(()),
        }
    }

    /// The place where ranks meet, except for an all-gather.
    ///
    /// # Safety
    /// As for [`join`](Self::join).
    unsafe fn place(&self, join: Join) -> Result<Join, Failure> {
        // SAFETY: the caller of this function guarantees text.
        let address = unsafe { text(self.0.address, "address") }?;
        let join = with(join, address, Join::address);
        if self.0.id.is_null() {
            return Ok(join);
        }
        // SAFETY: not NULL, and of bytes, which need no alignment; the caller of this function guarantees an
        // identifier.
        let bytes = unsafe { (*self.0.id).bytes };
        let id = JobId::from_bytes(&bytes).map_err(|error| Failure::from(error).about("config.id"))?;
        Ok(join.id(id))
    }

    /// How this process listens, and the key.
    ///
    /// # Safety
    /// As for [`join`](Self::join).
    unsafe fn network(&self, join: Join) -> Result<Join, Failure> {
        let config = &self.0;
        // SAFETY: the caller of this function guarantees text.
        let of = |pointer, field| unsafe { text(pointer, field) };
        if !config.key.is_null() && !config.key_file.is_null() {
            return Err(Failure::setting(
                "config.key_file is set beside config.key: expected only one of the two",
            ));
        }
        let join = with(join, of(config.network_interface, "network_interface")?, Join::interface);
        let join = with(join, of(config.announce, "announce")?, Join::announce);
        let join = with(join, of(config.key, "key")?, Join::key);
        let join = with(join, of(config.key_file, "key_file")?, Join::key_file);
        Ok(match (config.first_port, config.last_port) {
            (0, 0) => join,
            (first, last) => join.port_range(first, last),
        })
    }

    /// What the job is, and how it joins.
    ///
    /// # Safety
    /// As for [`join`](Self::join).
    unsafe fn about_job(&self, join: Join) -> Result<Join, Failure> {
        let config = &self.0;
        // SAFETY: the caller of this function guarantees text.
        let of = |pointer, field| unsafe { text(pointer, field) };
        let join = with(join, of(config.job, "job")?, Join::job);
        let join = with(join, of(config.host_id, "host_id")?, Join::host_id);
        let join = with(join, of(config.place_of_return, "place_of_return")?, Join::place_of_return);
        let join = with(join, Some(config.incarnation).filter(|number| *number > 0), Join::incarnation);
        let join =
            with(join, of(config.transport, "transport")?.map(transport).transpose()?, Join::transport);
        let join = with(join, seconds(config.join_timeout, "join_timeout")?, Join::timeout);
        let join = with(join, switch(config.shared_memory, "shared_memory")?, Join::shared_memory);
        Ok(with(join, switch(config.encrypt, "encrypt")?, Join::encrypt))
    }

    /// What calls go by.
    ///
    /// # Safety
    /// As for [`join`](Self::join).
    unsafe fn settings(&self, mut settings: Settings) -> Result<Settings, Failure> {
        let config = &self.0;
        // SAFETY: the caller of this function guarantees text.
        let of = |pointer, field| unsafe { text(pointer, field) };
        settings.timeout = seconds(config.timeout, "timeout")?.unwrap_or(settings.timeout);
        let thread = switch(config.progress_thread, "progress_thread")?;
        settings.progress_thread = thread.unwrap_or(settings.progress_thread);
        settings.any_order = any_order(config.any_order)?.unwrap_or(settings.any_order);
        if let Some(machine) = of(config.machine, "machine")? {
            let parsed = machine.parse();
            let wrong = |error| brevity_collectives::Error::Machine { variable: "config.machine", error };
            settings.machine = Some(parsed.map_err(wrong)?);
        }
        if let Some(wishes) = of(config.algorithm, "algorithm")? {
            let wrong = |error| brevity_collectives::Error::Wish { variable: "config.algorithm", error };
            settings.wishes = wishes.parse().map_err(wrong)?;
        }
        if config.segment > 0 {
            // Joining refuses what is out of range.
            settings.segment_bytes = usize::try_from(config.segment).unwrap_or(usize::MAX);
        }
        Ok(settings)
    }
}

const UNSET_CONFIG: brv_config = brv_config {
    size: size_of::<brv_config>() as u64,
    magic: MAGIC,
    version: ABI_VERSION,
    rank: UNSET,
    world_size: UNSET,
    address: ptr::null(),
    id: ptr::null(),
    all_gather: None,
    all_gather_data: ptr::null_mut(),
    key: ptr::null(),
    key_file: ptr::null(),
    job: ptr::null(),
    transport: ptr::null(),
    network_interface: ptr::null(),
    announce: ptr::null(),
    host_id: ptr::null(),
    join_timeout: UNSET as f64,
    timeout: UNSET as f64,
    shared_memory: UNSET,
    encrypt: UNSET,
    progress_thread: UNSET,
    first_port: 0,
    last_port: 0,
    place_of_return: ptr::null(),
    incarnation: 0,
    any_order: 0,
    machine: ptr::null(),
    algorithm: ptr::null(),
    segment: 0,
    reserved: [0; 3],
};

/// Sets what is given.
fn with<T>(join: Join, value: Option<T>, set: impl FnOnce(Join, T) -> Join) -> Join {
    match value {
        Some(value) => set(join, value),
        None => join,
    }
}

/// The text of a field; `None` for NULL.
///
/// # Safety
/// `text` is NULL, or ends with a zero and is not written during `'a`.
unsafe fn text<'a>(text: *const c_char, field: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, as just checked; the caller of this function guarantees the rest.
    let text = unsafe { CStr::from_ptr(text) };
    // The error must not show a key.
    text.to_str()
        .map(Some)
        .map_err(|_| Failure::setting(format!("config.{field} is no UTF-8: expected text")))
}

fn transport(name: &str) -> Result<Choice, Failure> {
    let wrong = || Failure::setting(format!("config.transport is {name:?}: expected auto, tcp or ucx"));
    Choice::parse(name).ok_or_else(wrong)
}

fn seconds(seconds: f64, field: &str) -> Result<Option<Duration>, Failure> {
    if seconds == f64::from(UNSET) {
        return Ok(None);
    }
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
    duration.map(Some).ok_or_else(|| {
        Failure::setting(format!(
            "config.{field} is {seconds:?}: expected seconds above 0, as 60 or 0.5, or BRV_UNSET"
        ))
    })
}

fn switch(value: i32, field: &str) -> Result<Option<bool>, Failure> {
    match value {
        UNSET => Ok(None),
        0 => Ok(Some(false)),
        1 => Ok(Some(true)),
        other => Err(Failure::setting(format!("config.{field} is {other}: expected 0, 1 or BRV_UNSET"))),
    }
}

/// A switch for which 0 is unset, because it was reserved before.
fn any_order(value: u32) -> Result<Option<bool>, Failure> {
    match value {
        0 => Ok(None),
        1 => Ok(Some(false)),
        2 => Ok(Some(true)),
        other => Err(Failure::setting(format!(
            "config.any_order is {other}: expected BRV_ORDER_FIXED, BRV_ORDER_ANY or 0"
        ))),
    }
}

/// Calls the program's all-gather, which returns the parts of all ranks in one stretch.
///
/// # Safety
/// `function` may be called with `data`.
unsafe fn gather(
    function: unsafe extern "C" fn(*const c_void, *mut c_void, usize, *mut c_void) -> c_int,
    own: &[u8],
    world_size: u32,
    data: *mut c_void,
) -> Result<Vec<Vec<u8>>, String> {
    let mut all = vec![0; own.len() * world_size as usize];
    let status = in_callback(|| {
        // SAFETY: the caller of this function guarantees it; both places have as many bytes as are said.
        unsafe { function(own.as_ptr().cast(), all.as_mut_ptr().cast(), own.len(), data) }
    });
    match status {
        0 => Ok(all.chunks_exact(own.len()).map(<[u8]>::to_vec).collect()),
        status => Err(format!("config.all_gather returned {status}")),
    }
}
