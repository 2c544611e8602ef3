//! How a quantiser of C rounds values.

use brevity::compress::codec::Plain;
use brevity::compress::quantise::{
    ColumnSign, Format, HalfPrecision, Magnitude, MinMax, Norm, Qsgd, Quantiser, Sign, Ternary, TwoBit,
};
use brevity::compress::state::{self, State};
use brevity::compress::{Error, SparseView};

use crate::boundary::check;
use crate::failure::Failure;

/// A format's number. C may pass any number, so this is not a Rust enum.
pub type brv_format = u32;
/// The number of a rule for magnitudes.
pub type brv_magnitude = u32;
/// A norm's number.
pub type brv_norm = u32;

/// The settings of a quantiser, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_quantiser_config {
    size: u32,
    format: brv_format,
    magnitude: brv_magnitude,
    columns: u32,
    levels: u32,
    bucket: u32,
    norm: brv_norm,
    unused: u32,
    clip: f64,
    seed: u64,
    reserved: [u64; 4],
}

/// The quantiser of a format.
#[derive(Clone)]
pub(super) enum Method {
    Plain(Plain),
    Half(HalfPrecision),
    Sign(Sign),
    Columns(ColumnSign),
    TwoBit(TwoBit),
    Ternary(Ternary),
    Qsgd(Qsgd),
    MinMax(MinMax),
}

/// The quantiser of any method, shared or not.
macro_rules! any {
    ($of:expr) => {
        match $of {
            Method::Plain(method) => method,
            Method::Half(method) => method,
            Method::Sign(method) => method,
            Method::Columns(method) => method,
            Method::TwoBit(method) => method,
            Method::Ternary(method) => method,
            Method::Qsgd(method) => method,
            Method::MinMax(method) => method,
        }
    };
}

impl Method {
    fn inner(&self) -> &dyn Quantiser {
        any!(self)
    }

    fn inner_mut(&mut self) -> &mut dyn Quantiser {
        any!(self)
    }

    /// What it keeps from message to message.
    pub(super) fn state(&self) -> Option<&dyn State> {
        match self {
            Self::TwoBit(method) => Some(method),
            Self::Ternary(method) => Some(method),
            Self::Qsgd(method) => Some(method),
            _ => None,
        }
    }

    /// Likewise, to load it.
    pub(super) fn state_mut(&mut self) -> Option<&mut dyn State> {
        match self {
            Self::TwoBit(method) => Some(method),
            Self::Ternary(method) => Some(method),
            Self::Qsgd(method) => Some(method),
            _ => None,
        }
    }

    /// The bytes of its saved state; 0 if it keeps nothing.
    pub(super) fn saved_bytes(&self) -> usize {
        self.state().map_or(0, state::saved_bytes)
    }
}

impl Quantiser for Method {
    fn format(&self) -> Format {
        self.inner().format()
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        self.inner().encoded_bytes(count)
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.inner_mut().encode(values, bytes)
    }

    fn encode_sparse(&mut self, entries: SparseView<'_>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.inner_mut().encode_sparse(entries, bytes)
    }

    fn contracts(&self, count: usize, may_be_zero: bool) -> bool {
        self.inner().contracts(count, may_be_zero)
    }
}

/// Reads a config.
///
/// # Safety
/// `config` is NULL, or points to at least 4 bytes that hold its size. If that is the size of
/// [`brv_quantiser_config`], the whole struct may be read.
pub(super) unsafe fn read(config: *const brv_quantiser_config) -> Result<Method, Failure> {
    check(config, "config")?;
    // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
    let size = unsafe { (&raw const (*config).size).read() };
    if size as usize != size_of::<brv_quantiser_config>() {
        let expected = size_of::<brv_quantiser_config>();
        return Err(refused("size", size, &format!("{expected}: begin with BRV_QUANTISER_INIT")));
    }
    // SAFETY: it has the size of a config, so the caller of this function guarantees all of it.
    let config = unsafe { config.read() };
    if config.reserved != [0; 4] || config.unused != 0 {
        return Err(Failure::argument(
            "a reserved field of config is set, expected 0: begin with BRV_QUANTISER_INIT",
        ));
    }
    let format = u8::try_from(config.format).ok().and_then(Format::from_id);
    match format {
        Some(Format::F32) => Ok(Method::Plain(Plain)),
        Some(Format::F16) => Ok(Method::Half(HalfPrecision::f16())),
        Some(Format::Bf16) => Ok(Method::Half(HalfPrecision::bf16())),
        Some(Format::Sign) => Ok(Method::Sign(Sign::new(magnitude(&config)?))),
        Some(Format::SignColumns) => Ok(Method::Columns(ColumnSign::means(columns(&config)?))),
        Some(Format::SignPairs) => Ok(Method::Columns(ColumnSign::pairs(columns(&config)?))),
        Some(Format::TwoBit) => Ok(Method::TwoBit(TwoBit::new(magnitude(&config)?))),
        Some(Format::Ternary) => Ok(Method::Ternary(ternary(&config)?)),
        Some(Format::Qsgd) => Ok(Method::Qsgd(qsgd(&config)?)),
        Some(Format::MinMax) => Ok(Method::MinMax(MinMax::new(config.bucket))),
        _ => Err(refused("format", config.format, "a brv_format (0 to 9)")),
    }
}

fn magnitude(config: &brv_quantiser_config) -> Result<Magnitude, Failure> {
    match config.magnitude {
        0 => Ok(Magnitude::Mean),
        1 => Ok(Magnitude::Min),
        other => Err(refused("magnitude", other, "a brv_magnitude (0 or 1)")),
    }
}

fn columns(config: &brv_quantiser_config) -> Result<u32, Failure> {
    match config.columns {
        0 => Err(refused("columns", 0, "1 or more")),
        columns => Ok(columns),
    }
}

fn ternary(config: &brv_quantiser_config) -> Result<Ternary, Failure> {
    // Rounded first: a number may become 0 or infinite.
    let deviations = config.clip as f32;
    match config.clip {
        0.0 => Ok(Ternary::new(config.seed)),
        _ if deviations > 0.0 && deviations.is_finite() => Ok(Ternary::clipped(config.seed, deviations)),
        other => Err(refused("clip", other, "standard deviations above 0, as 2.5, or 0 for no clipping")),
    }
}

fn qsgd(config: &brv_quantiser_config) -> Result<Qsgd, Failure> {
    let levels = u8::try_from(config.levels).ok().filter(|levels| (1..=127).contains(levels));
    let levels = levels.ok_or_else(|| refused("levels", config.levels, "1 to 127"))?;
    let norm = match config.norm {
        0 => Norm::Euclidean,
        1 => Norm::Largest,
        other => return Err(refused("norm", other, "a brv_norm (0 or 1)")),
    };
    Ok(Qsgd::new(levels, config.bucket, norm, config.seed))
}

fn refused(field: &str, found: impl std::fmt::Debug, expected: &str) -> Failure {
    Failure::argument(format!("config.{field} is {found:?}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(format: brv_format, change: impl Fn(&mut brv_quantiser_config)) -> Result<Method, String> {
        let size = size_of::<brv_quantiser_config>() as u32;
        let (magnitude, columns, levels, bucket, norm, unused) = (0, 1, 1, 512, 0, 0);
        let (clip, seed, reserved) = (0.0, 7, [0; 4]);
        let mut config = brv_quantiser_config {
            size,
            format,
            magnitude,
            columns,
            levels,
            bucket,
            norm,
            unused,
            clip,
            seed,
            reserved,
        };
        change(&mut config);
        // SAFETY: the config is a local variable.
        unsafe { read(&raw const config) }.map_err(|failure| failure.text().to_owned())
    }

    #[test]
    fn every_format_of_rust_has_its_quantiser() {
        for format in Format::ALL {
            let method = with(format.id().into(), |_| ()).unwrap();
            assert_eq!(method.format(), format);
            let keeps = matches!(format, Format::TwoBit | Format::Ternary | Format::Qsgd);
            assert_eq!(method.state().is_some(), keeps, "{format:?}");
        }
    }

    #[test]
    fn settings_reach_the_quantiser() {
        let bytes = |format: Format, change: fn(&mut brv_quantiser_config)| {
            with(format.id().into(), change).unwrap().encoded_bytes(1024)
        };
        assert_eq!(bytes(Format::SignColumns, |config| config.columns = 5), 4 + 4 * 5 + 128);
        assert_eq!(bytes(Format::SignPairs, |config| config.columns = 5), 4 + 8 * 5 + 128);
        assert_eq!(bytes(Format::Qsgd, |config| config.levels = 7), 8 + 2 * 4 + 512);
        assert_eq!(bytes(Format::Qsgd, |config| config.bucket = 1024), 8 + 4 + 256);
        assert_eq!(bytes(Format::MinMax, |config| config.bucket = 0), 4 + 2 * 8 + 1024);
        let contracts = |format: Format, change: fn(&mut brv_quantiser_config)| {
            with(format.id().into(), change).unwrap().contracts(8, true)
        };
        assert!(contracts(Format::Sign, |_| ()) && !contracts(Format::Sign, |config| config.magnitude = 1));
        assert!(
            contracts(Format::Ternary, |_| ()) && !contracts(Format::Ternary, |config| config.clip = 2.5)
        );
        assert!(contracts(Format::Qsgd, |config| config.norm = 1) && !contracts(Format::Qsgd, |_| ()));
    }

    #[test]
    fn wrong_fields_are_named() {
        let refused = |format: Format, field: &str, change: fn(&mut brv_quantiser_config)| {
            let text = with(format.id().into(), change).err().unwrap();
            assert!(text.contains(&format!("config.{field} is ")), "{text}");
        };
        refused(Format::F32, "size", |config| config.size -= 8);
        refused(Format::F32, "format", |config| config.format = 10);
        refused(Format::F32, "format", |config| config.format = 256);
        for format in [Format::Sign, Format::TwoBit] {
            refused(format, "magnitude", |config| config.magnitude = 2);
        }
        for format in [Format::SignColumns, Format::SignPairs] {
            refused(format, "columns", |config| config.columns = 0);
        }
        refused(Format::Ternary, "clip", |config| config.clip = -1.0);
        refused(Format::Ternary, "clip", |config| config.clip = f64::NAN);
        refused(Format::Ternary, "clip", |config| config.clip = 1e300);
        refused(Format::Qsgd, "levels", |config| config.levels = 0);
        refused(Format::Qsgd, "levels", |config| config.levels = 128);
        refused(Format::Qsgd, "levels", |config| config.levels = 257);
        refused(Format::Qsgd, "norm", |config| config.norm = 2);
        for change in
            [(|config| config.reserved[3] = 1) as fn(&mut brv_quantiser_config), |config| config.unused = 1]
        {
            assert!(with(0, change).err().unwrap().contains("reserved"));
        }
    }
}
