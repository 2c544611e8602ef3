//! What a rank keeps of a parameter server: residuals, saved states and statistics.

use std::ffi::{CStr, c_char, c_void};

use brevity::server::Step;

use crate::boundary::{check, guard};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::saved::nothing_follows;
use crate::server::{brv_server, serving_of};
use crate::status::brv_status;

/// What a step has brought, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_server_step {
    size: u32,
    unused: u32,
    clock: u64,
    lag: u64,
    bytes: u64,
    reserved: [u64; 4],
}

/// What a shard has done, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_server_statistics {
    size: u32,
    unused: u32,
    pushes: u64,
    refused: u64,
    reserved: [u64; 5],
}

/// Checks the place of a step's figures.
///
/// # Safety
/// `step` is NULL, or points to at least 4 bytes that hold its size.
pub(crate) unsafe fn check_step(step: *mut brv_server_step) -> Result<(), Failure> {
    if step.is_null() {
        return Ok(());
    }
    check(step, "step")?;
    // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
    let size = unsafe { (&raw const (*step).size).read() };
    check_size(size, size_of::<brv_server_step>(), "step", "BRV_SERVER_STEP_INIT")
}

fn check_size(size: u32, expected: usize, name: &str, init: &str) -> Result<(), Failure> {
    if size as usize == expected {
        return Ok(());
    }
    Err(Failure::argument(format!("{name}->size is {size}, expected {expected}: begin with {init}")))
}

/// Stores a step's figures.
///
/// # Safety
/// `step` is NULL, or was checked by [`check_step`] and may be written.
pub(crate) unsafe fn write_step(step: *mut brv_server_step, taken: Step) {
    if !step.is_null() {
        let size = size_of::<brv_server_step>() as u32;
        let (clock, lag, bytes) = (taken.clock, taken.lag, taken.bytes);
        // SAFETY: the caller of this function guarantees memory of that size.
        unsafe { step.write(brv_server_step { size, unused: 0, clock, lag, bytes, reserved: [0; 4] }) };
    }
}

/// Copies what this worker has not pushed of a tensor's gradients to `out`.
///
/// # Safety
/// `server` is NULL or a live server; `name` is NULL, or text that ends with a zero; `out` has `n` elements
/// that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_residual(
    server: *mut brv_server,
    name: *const c_char,
    out: *mut f32,
    n: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        check(name, "name")?;
        // SAFETY: not NULL, as just checked; the caller in C guarantees text.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let server = serving.begun()?;
        if !server.is_worker() {
            return Err(Failure::argument("this rank only serves: ask a worker for its residual"));
        }
        let residual = server.residual(&name).ok_or(brevity::Error::NoSuchTensor { tensor: name })?;
        let out = Stretch::new(out.cast_const(), n, "out")?;
        out.check_count(residual.len())?;
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { out.unset() }.copy_from_slice(&residual);
        Ok(())
    })
}

/// Writes what this rank needs after a restart to `out`, if it has room, and the number of bytes to `needed`.
///
/// # Safety
/// `server` is NULL or a live server; `out` has `bytes` bytes that nobody else uses meanwhile; `needed` is
/// NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_save(
    server: *mut brv_server,
    out: *mut c_void,
    bytes: usize,
    needed: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        check(needed, "needed")?;
        if bytes > 0 {
            check(out, "out")?;
        }
        let mut room = Room { out: Vec::new(), most: bytes, count: 0 };
        let saved = serving.begun()?.save(&mut room);
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees the memory.
        unsafe { needed.write(room.count) };
        if room.count > bytes {
            let text = format!("bytes is {bytes}, expected at least {}: see needed", room.count);
            return Err(Failure::argument(text));
        }
        saved?;
        let out = Stretch::new(out.cast::<u8>().cast_const(), bytes, "out")?;
        // SAFETY: the caller in C guarantees the memory of `out`.
        let out = unsafe { out.unset() };
        out[..room.count].copy_from_slice(&room.out);
        Ok(())
    })
}

/// Says that the last state that this rank has saved can't be lost any more.
///
/// # Safety
/// `server` is NULL or a live server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_confirm_saved(server: *mut brv_server) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        serving.begun()?.confirm_saved();
        Ok(())
    })
}

/// Stores what the shard of this rank has done.
///
/// # Safety
/// `server` is NULL or a live server; `statistics` is NULL, or may be written and holds its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_get_statistics(
    server: *mut brv_server,
    statistics: *mut brv_server_statistics,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        check(statistics, "statistics")?;
        // SAFETY: not NULL and aligned; the caller in C guarantees that it holds its size.
        let size = unsafe { (&raw const (*statistics).size).read() };
        check_size(size, size_of::<brv_server_statistics>(), "statistics", "BRV_SERVER_STATISTICS_INIT")?;
        let none = || Failure::argument("this rank does not serve: it has no statistics");
        let served = serving.served()?.ok_or_else(none)?;
        let (pushes, refused) = (served.pushes, served.refused);
        let found = brv_server_statistics { size, unused: 0, pushes, refused, reserved: [0; 5] };
        // SAFETY: it has the size of the struct, so the caller in C guarantees all of it.
        unsafe { statistics.write(found) };
        Ok(())
    })
}

/// Stores where the shard of this rank begins among all elements, and how many it has.
///
/// # Safety
/// `server` is NULL or a live server; `first` and `n` are NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_shard(
    server: *mut brv_server,
    first: *mut usize,
    n: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        check(first, "first")?;
        check(n, "n")?;
        let elements = serving.begun()?.elements().ok_or_else(serves_nothing)?;
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees the memory.
        unsafe { first.write(elements.start) };
        // SAFETY: likewise.
        unsafe { n.write(elements.len()) };
        Ok(())
    })
}

/// Copies the model of this rank's shard to `out`.
///
/// # Safety
/// `server` is NULL or a live server; `out` has `n` elements that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_model(server: *mut brv_server, out: *mut f32, n: usize) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        let (_, model) = serving.begun()?.model().ok_or_else(serves_nothing)?;
        let out = Stretch::new(out.cast_const(), n, "out")?;
        out.check_count(model.len())?;
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { out.unset() }.copy_from_slice(&model);
        Ok(())
    })
}

fn serves_nothing() -> Failure {
    Failure::argument("this rank does not serve: it has no shard")
}

/// Bytes as far as there is room, and their number.
struct Room {
    out: Vec<u8>,
    most: usize,
    count: usize,
}

impl std::io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.count += bytes.len();
        if self.count <= self.most {
            self.out.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    /// What had no room is not saved, so there is nothing to confirm.
    fn flush(&mut self) -> std::io::Result<()> {
        if self.count > self.most { Err(std::io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }
}

/// Begins from a saved state.
///
/// # Safety
/// `server` is NULL or a live server; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_resume(
    server: *mut brv_server,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let mut saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
        serving.change(|builder| {
            let resumed = builder.resume(&mut saved)?;
            nothing_follows(saved)?;
            Ok(resumed)
        })
    })
}
