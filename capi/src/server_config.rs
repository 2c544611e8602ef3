//! The settings of a parameter server, as in C.

use brevity::ParameterServer;
use brevity::compress::codec::{Choice, IndexCodec};
use brevity::server::{Method, Rule, ServerBuilder, Servers, Threshold, Values};

use crate::boundary::check;
use crate::failure::Failure;
use crate::group::Shared;
use crate::wait::longest;

const ASGD: u32 = 1;
const GRADIENT_DROPPING: u32 = 2;
const DGS: u32 = 3;
const DGC: u32 = 4;

/// A method with the other settings, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_server_config {
    size: u32,
    method: u32,
    density: f64,
    secondary_density: f64,
    momentum: f64,
    clip: f64,
    epsilon: f64,
    servers: u32,
    rule: u32,
    threshold: u32,
    values: u32,
    staleness: i64,
    keep_pushes: u32,
    codec: u32,
    patience: f64,
    reserved: [u64; 7],
}

/// Reads a config.
///
/// # Safety
/// `config` is NULL, or points to at least 4 bytes that hold its size. If that is the size of
/// [`brv_server_config`], the whole struct may be read.
pub(crate) unsafe fn read(config: *const brv_server_config) -> Result<brv_server_config, Failure> {
    check(config, "config")?;
    // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
    let size = unsafe { (&raw const (*config).size).read() };
    if size as usize != size_of::<brv_server_config>() {
        let expected = size_of::<brv_server_config>();
        return Err(refused("size", size, &format!("{expected}: begin with BRV_SERVER_CONFIG_INIT")));
    }
    // SAFETY: it has the size of a config, so the caller of this function guarantees all of it.
    let config = unsafe { config.read() };
    if config.reserved != [0; 7] {
        return Err(Failure::argument(
            "a reserved field of config is set, expected 0: begin with BRV_SERVER_CONFIG_INIT",
        ));
    }
    Ok(config)
}

impl brv_server_config {
    /// A builder with these settings. Ranges are checked by the builder.
    pub(crate) fn builder(&self, shared: &Shared) -> Result<ServerBuilder, Failure> {
        let mut builder = ParameterServer::builder(&shared.group)
            .method(self.method()?)
            .rule(self.rule()?)
            .threshold(self.threshold()?)
            .values(self.values()?)
            .codec(self.codec()?);
        if self.servers > 0 {
            builder = builder.servers(Servers::Dedicated(self.servers));
        }
        if self.secondary_density != 0.0 {
            builder = builder.secondary_density(self.secondary_density);
        }
        match u64::try_from(self.staleness) {
            Ok(steps) => builder = builder.staleness(steps),
            Err(_) if self.staleness == -1 => {}
            Err(_) => return Err(refused("staleness", self.staleness, "steps, or -1 for no bound")),
        }
        if self.patience != 0.0 {
            let wrong = |_| refused("patience", self.patience, "seconds, or 0 for a quarter of the timeout");
            builder = builder.patience(longest(self.patience).map_err(wrong)?);
        }
        match self.keep_pushes {
            0 => Ok(builder),
            1 => Ok(builder.keep_pushes()),
            other => Err(refused("keep_pushes", other, "0 or 1")),
        }
    }

    fn method(&self) -> Result<Method, Failure> {
        let momentum = self.momentum as f32;
        match self.method {
            ASGD => Ok(Method::asgd()),
            GRADIENT_DROPPING => Ok(Method::gradient_dropping(self.density)),
            DGS => Ok(Method::dgs(self.density, momentum)),
            DGC if self.clip == 0.0 => Ok(Method::dgc(self.density, momentum)),
            DGC => Ok(Method::dgc(self.density, momentum).clip(self.clip)),
            other => Err(refused("method", other, &format!("a brv_server_method ({ASGD} to {DGC})"))),
        }
    }

    fn rule(&self) -> Result<Rule, Failure> {
        match self.rule {
            0 => Ok(Rule::Sgd),
            1 => Ok(Rule::AdaGrad { epsilon: self.epsilon as f32 }),
            other => Err(refused("rule", other, "a brv_server_rule (0 or 1)")),
        }
    }

    fn threshold(&self) -> Result<Threshold, Failure> {
        match self.threshold {
            0 => Ok(Threshold::PerTensor),
            1 => Ok(Threshold::PerShard),
            other => Err(refused("threshold", other, "a brv_threshold (0 or 1)")),
        }
    }

    fn codec(&self) -> Result<Choice, Failure> {
        codec(self.codec).ok_or_else(|| refused("codec", self.codec, "a brv_codec (0 to 5)"))
    }

    fn values(&self) -> Result<Values, Failure> {
        let values = crate::policy::values(self.values);
        values.ok_or_else(|| refused("values", self.values, crate::policy::VALUES_TEXT))
    }
}

/// The choice of codecs of this number.
pub(crate) fn codec(number: u32) -> Option<Choice> {
    match number {
        0 => Some(Choice::Fast),
        1 => Some(Choice::Smallest),
        other => IndexCodec::ALL.get(other as usize - 2).copied().map(Choice::Only),
    }
}

fn refused(field: &str, found: impl std::fmt::Debug, expected: &str) -> Failure {
    Failure::argument(format!("config.{field} is {found:?}, expected {expected}"))
}
