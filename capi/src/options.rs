//! The options of one call.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::time::Duration;

use brevity::{Averaging, GradientExchange, Group};

use crate::boundary::{check, guard};
use crate::callback::check_may_wait;
use crate::failure::Failure;
use crate::lent::Lent;
use crate::status::brv_status;

/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 255;

/// What one call does differently, as in C.
#[repr(C)]
pub struct brv_options {
    size: u32,
    algorithm: u32,
    timeout: f64,
    name: *const c_char,
    reserved: [u64; 5],
}

/// The same, checked; without any, what a call does by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    timeout: Option<Duration>,
    name: Option<String>,
}

impl Options {
    /// Reads options; NULL is none.
    ///
    /// # Safety
    /// `options` is NULL, or points to at least 4 bytes that hold its size. If that is the size of
    /// [`brv_options`], the whole struct may be read, and its name is NULL or a string.
    pub(crate) unsafe fn read(options: *const brv_options) -> Result<Self, Failure> {
        if options.is_null() {
            return Ok(Self::default());
        }
        check(options, "options")?;
        // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
        let size = unsafe { (&raw const (*options).size).read() };
        if size as usize != size_of::<brv_options>() {
            let expected = size_of::<brv_options>();
            return Err(Failure::argument(format!(
                "options.size is {size}, expected {expected}: begin with BRV_OPTIONS_INIT"
            )));
        }
        // SAFETY: it has the size of these options, so the caller of this function guarantees all of it.
        let options = unsafe { &*options };
        if options.algorithm != 0 || options.reserved != [0; 5] {
            return Err(Failure::argument(
                "options.algorithm or a reserved field is set, expected 0: begin with BRV_OPTIONS_INIT",
            ));
        }
        let name = if options.name.is_null() {
            None
        } else {
            // SAFETY: the caller of this function guarantees a string.
            let name = unsafe { CStr::from_ptr(options.name) };
            let name = name.to_str().ok().filter(|name| name.len() <= MAX_NAME_BYTES);
            let wrong = || format!("options.name is no UTF-8 of at most {MAX_NAME_BYTES} bytes");
            Some(name.ok_or_else(|| Failure::argument(wrong()))?.to_owned())
        };
        Ok(Self { timeout: timeout(options.timeout, "options.timeout")?, name })
    }

    /// The group, with the timeout of the call.
    pub(crate) fn on<'a>(&self, group: &'a Group) -> Cow<'a, Group> {
        match self.timeout {
            Some(timeout) => Cow::Owned(group.with_timeout(timeout)),
            None => Cow::Borrowed(group),
        }
    }

    /// Averages with the timeout of the call.
    pub(crate) fn average(
        &self,
        exchange: &mut GradientExchange,
        gradients: &mut [&mut [f32]],
    ) -> Result<(), Failure> {
        let averaged = match self.timeout {
            Some(timeout) => exchange.average_within(gradients, timeout),
            None => exchange.average(gradients),
        };
        Ok(averaged?)
    }

    /// Starts an average with an exchange, with the timeout of the call.
    pub(crate) fn start(
        &self,
        exchange: GradientExchange,
        gradients: Vec<Lent<f32>>,
    ) -> Averaging<Lent<f32>> {
        match self.timeout {
            Some(timeout) => exchange.start_within(gradients, timeout),
            None => exchange.start(gradients),
        }
    }

    /// Names the call in the text of its failure.
    pub(crate) fn explain(&self, failure: impl Into<Failure>) -> Failure {
        match &self.name {
            Some(name) => failure.into().about(name),
            None => failure.into(),
        }
    }
}

/// A timeout in seconds; `None` for 0. Infinity is no limit.
pub(crate) fn timeout(seconds: f64, field: &str) -> Result<Option<Duration>, Failure> {
    if seconds == 0.0 {
        return Ok(None);
    }
    if seconds == f64::INFINITY {
        return Ok(Some(Duration::MAX));
    }
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
    timeout.map(Some).ok_or_else(|| {
        Failure::argument(format!(
            "{field} is {seconds:?}, expected seconds above 0 and below 1e19, as 30 or 0.5, or INFINITY"
        ))
    })
}

/// Runs a call that waits, with its options.
///
/// # Safety
/// As for [`Options::read`].
pub(crate) unsafe fn with_options<T>(
    options: *const brv_options,
    body: impl FnOnce(&Options) -> Result<T, Failure>,
) -> Result<T, Failure> {
    check_may_wait()?;
    // SAFETY: the caller of this function guarantees what `read` demands.
    let options = unsafe { Options::read(options) }?;
    body(&options).map_err(|failure| options.explain(failure))
}

/// Like [`with_options`], for a call that gives nothing but its status.
///
/// # Safety
/// As for [`Options::read`].
pub(crate) unsafe fn waiting_call(
    options: *const brv_options,
    body: impl FnOnce(&Options) -> Result<(), Failure>,
) -> brv_status {
    // SAFETY: the caller of this function guarantees what `with_options` demands.
    guard(|| unsafe { with_options(options, body) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> brv_options {
        let size = size_of::<brv_options>() as u32;
        brv_options { size, algorithm: 0, timeout: 0.0, name: std::ptr::null(), reserved: [0; 5] }
    }

    fn read(options: &brv_options) -> Result<Options, String> {
        // SAFETY: the options are live, and their name is NULL or a literal.
        unsafe { Options::read(options) }.map_err(|failure| failure.text().to_owned())
    }

    #[test]
    fn options_are_64_bytes_and_begin_as_none() {
        assert_eq!(size_of::<brv_options>(), 64);
        let read = read(&options()).unwrap();
        assert_eq!((read.timeout, read.name), (None, None));
    }

    #[test]
    fn wrong_options_are_refused_with_the_remedy() {
        let with = |change: fn(&mut brv_options)| {
            let mut options = options();
            change(&mut options);
            read(&options).map(|options| options.timeout)
        };
        assert!(with(|options| options.size = 63).unwrap_err().contains("BRV_OPTIONS_INIT"));
        assert!(with(|options| options.algorithm = 1).is_err());
        assert!(with(|options| options.reserved[4] = 1).is_err());
        assert!(with(|options| options.name = c"\xff".as_ptr()).is_err());
        for seconds in [-1.0, f64::NAN, f64::NEG_INFINITY, 1e300, 1e-300] {
            let mut options = options();
            options.timeout = seconds;
            assert!(read(&options).unwrap_err().contains("options.timeout"), "{seconds}");
        }
        assert_eq!(with(|options| options.timeout = 0.5), Ok(Some(Duration::from_millis(500))));
        assert_eq!(with(|options| options.timeout = f64::INFINITY), Ok(Some(Duration::MAX)));
    }
}
