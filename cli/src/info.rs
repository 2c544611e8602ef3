//! `brevity info`: this build, what it finds on this host, and the settings in force.

use std::env;
use std::fmt;
use std::path::PathBuf;

use brevity::transport::bootstrap::{Launcher, pmix_available};
use brevity::transport::shm::why_unreadable;
use brevity::transport::ucx::rdma_devices;
use brevity::transport::{tcp, ucx};
use brevity::{Machine, Settings};
use brevity_bench::output::print;
use brevity_bench::record::to_json;
use serde::Serialize;

use crate::host::{self, Finding};

/// Shows the version, the transports found, what the processor and the host offer, and the settings in force.
#[derive(Clone, Debug, clap::Args)]
pub struct InfoArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the report.
///
/// # Errors
/// If standard output was closed.
pub fn info(arguments: &InfoArguments) -> brevity_bench::Result<()> {
    let info = Info::collect(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()));
    print(&if arguments.json { to_json(&info)? } else { info.to_string() })
}

/// The report.
#[derive(Debug, Serialize)]
struct Info {
    version: &'static str,
    transports: Vec<Transport>,
    ucx: Option<Ucx>,
    /// The launchers whose variables are set.
    launchers: Vec<LauncherFound>,
    /// Whether ranks under mpirun and srun --mpi=pmix could find each other.
    pmix: Pmix,
    cpu: Cpu,
    host: Vec<Finding>,
    defaults: Vec<Setting>,
    environment: Vec<Variable>,
}

#[derive(Debug, Serialize)]
struct Transport {
    name: &'static str,
    available: bool,
    /// What it runs over, or why it is missing.
    note: String,
}

#[derive(Debug, Serialize)]
struct Ucx {
    version: String,
    path: PathBuf,
}

/// A launcher that has started this process, or one of its ancestors, as a rank.
#[derive(Debug, Serialize)]
struct LauncherFound {
    name: &'static str,
    /// Whether this process is a rank of this launcher.
    counts: bool,
    rank: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Pmix {
    available: bool,
    note: String,
}

#[derive(Debug, Serialize)]
struct Cpu {
    architecture: &'static str,
    processors: usize,
    /// The instruction set of the compression kernels, chosen at run time.
    kernels: &'static str,
    /// The features that the rest of the program was compiled for.
    used: Vec<&'static str>,
    /// The other features of the processor.
    unused: Vec<&'static str>,
}

/// The value of a setting.
#[derive(Debug, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
}

/// An environment variable that is set.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Variable {
    name: &'static str,
    value: String,
    meaning: &'static str,
}

/// The environment variables that are read, and their meanings.
const VARIABLES: [(&str, &str); 36] = [
    ("BREVITY_RANK", "this rank, from 0"),
    ("BREVITY_WORLD_SIZE", "ranks in the job"),
    ("BREVITY_MASTER", "host:port where ranks meet"),
    ("BREVITY_INCARNATION", "how often this rank was started again; such a rank comes back into its job"),
    ("BREVITY_RETURN", "host:port where such ranks come back, on the host of the lowest rank that is left"),
    ("BREVITY_TRANSPORT", "auto, ucx or tcp"),
    ("BREVITY_TIMEOUT", "seconds that a call may take"),
    ("BREVITY_ALGORITHM", "algorithms to use in place of the fastest; rank 0's count"),
    ("BREVITY_ANY_ORDER", "1 or on, 0 or off: whether sums may have any order; rank 0's counts"),
    ("BREVITY_MACHINE", "the speeds that algorithms are chosen for; rank 0's count"),
    ("BREVITY_SEGMENT", "bytes of a message of a long vector; rank 0's count"),
    ("BREVITY_PROGRESS_THREAD", "1 or on, 0 or off: whether a thread moves non-blocking calls"),
    ("BREVITY_SHARED_MEMORY", "1 or on, 0 or off: whether ranks of one host share memory"),
    ("BREVITY_HOST_ID", "tells hosts apart that look alike"),
    ("BREVITY_ENCRYPT", "1 or on, 0 or off: whether the tcp transport encrypts"),
    ("BREVITY_JOIN_TIMEOUT", "seconds that ranks wait for each other at the start"),
    ("BREVITY_INTERFACE", "the network interface to use"),
    ("BREVITY_PORT_RANGE", "first-last: the ports to listen on"),
    ("BREVITY_ANNOUNCE", "host or host:port where peers reach this rank"),
    ("BREVITY_KEY_FILE", "the file with the job's key"),
    (KEY, "the job's key"),
    ("BREVITY_JOB", "the job's name, the same for all its ranks"),
    ("BREVITY_LOG", "off, error, warn, info, debug or trace: what is said on standard error"),
    ("BREVITY_UCX_LIB", "the libucp.so.0 to load"),
    ("BREVITY_PMIX_LIB", "the libpmix.so.2 to load"),
    ("OMPI_COMM_WORLD_RANK", "this rank, as mpirun says it"),
    ("OMPI_COMM_WORLD_SIZE", "ranks in the job, as mpirun says it"),
    ("PMI_RANK", "this rank, as mpiexec says it"),
    ("PMI_SIZE", "ranks in the job, as mpiexec says it"),
    ("SLURM_PROCID", "this rank, as srun says it"),
    ("SLURM_STEP_NUM_TASKS", "ranks in the job, as srun says it"),
    ("RANK", "this rank, as torchrun says it"),
    ("WORLD_SIZE", "ranks in the job, as torchrun says it"),
    ("MASTER_ADDR", "host where ranks meet, as torchrun says it"),
    ("TORCHELASTIC_RUN_ID", "the job's name, as torchrun says it; none is no name"),
    ("MASTER_PORT", "torchrun's own port; ranks meet at one of the next 16"),
];

/// The variable whose value is never shown.
const KEY: &str = "BREVITY_KEY";

impl Info {
    fn collect(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let found = find_ucx();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            transports: transports(found.as_ref().map(drop).map_err(String::as_str)),
            ucx: found.ok(),
            launchers: launchers(),
            pmix: pmix(),
            cpu: Cpu::detect(),
            host: host::findings(),
            defaults: defaults(),
            environment: variables(lookup),
        }
    }
}

/// The UCX library in use, or why there is none.
fn find_ucx() -> Result<Ucx, String> {
    let ucx::Report { version: (major, minor, release), path } = ucx::available()?;
    Ok(Ucx { version: format!("{major}.{minor}.{release}"), path })
}

fn launchers() -> Vec<LauncherFound> {
    let counts = Launcher::from_env();
    let found = Launcher::all_from_env().into_iter();
    found
        .map(|launcher| LauncherFound {
            name: launcher.name(),
            counts: counts == Some(launcher),
            rank: launcher.rank_from_env(),
        })
        .collect()
}

fn pmix() -> Pmix {
    let found = pmix_available();
    let available = found.is_ok();
    Pmix {
        available,
        note: found.err().unwrap_or_else(|| "for ranks under mpirun and srun --mpi=pmix".into()),
    }
}

fn transports(ucx: Result<(), &str>) -> Vec<Transport> {
    let devices = rdma_devices();
    let ucx_note = match (ucx, &devices[..]) {
        (Err(why), _) => why.to_owned(),
        (Ok(()), []) => "shared memory and TCP: no device for RDMA".into(),
        (Ok(()), devices) => format!("shared memory, TCP, and RDMA by {}", devices.join(", ")),
    };
    vec![
        Transport { name: "ucx", available: ucx.is_ok(), note: ucx_note },
        Transport { name: "tcp", available: true, note: tcp_note(why_unreadable()) },
        Transport { name: "local", available: true, note: "threads of one process".into() },
        Transport { name: "sim", available: true, note: "ranks in virtual time".into() },
    ]
}

/// What the tcp transport runs over, and why ranks of this host can't read each other's memory.
fn tcp_note(why_unreadable: Option<String>) -> String {
    let note = "sockets, and shared memory inside a host";
    why_unreadable.map_or(note.into(), |why| {
        format!("{note}; cannot read other ranks' memory ({why}): long messages are copied twice")
    })
}

fn defaults() -> Vec<Setting> {
    let Settings { timeout, segment_bytes, .. } = Settings::default();
    let of = |name, value| Setting { name, value };
    let unexpected_mib = tcp::CREDIT_BYTES >> 20;
    let at_once_kib = ucx::MAX_EAGER_BYTES >> 10;
    vec![
        of("transport", "auto: ucx where all ranks have it and a network for it, else tcp".into()),
        of("timeout of a call", format!("{} s", timeout.as_secs_f64())),
        of("timeout of joining", "60 s".into()),
        of("messages kept before they are received, over tcp", format!("{unexpected_mib} MiB a peer")),
        of(
            "messages kept before they are received, over ucx",
            format!("{} MiB a peer", ucx::CREDIT_BYTES >> 20),
        ),
        of("messages sent in one piece, over ucx", format!("up to {at_once_kib} KiB")),
        of("messages of a long vector", format!("{} KiB", segment_bytes >> 10)),
        of("machine, if it is not measured", Machine::default().to_string()),
    ]
}

fn variables(lookup: impl Fn(&str) -> Option<String>) -> Vec<Variable> {
    let shown = |name, value: String| if name == KEY { "(set, not shown)".to_owned() } else { value };
    let set =
        |(name, meaning)| lookup(name).map(|value| Variable { name, value: shown(name, value), meaning });
    VARIABLES.into_iter().filter_map(set).collect()
}

/// Separates the features that the program was compiled for from the other features of the processor.
macro_rules! features {
    ($detected:ident: $($name:tt)*) => {{
        let (mut used, mut unused) = (Vec::new(), Vec::new());
        $(if cfg!(target_feature = $name) {
            used.push($name);
        } else if std::arch::$detected!($name) {
            unused.push($name);
        })*
        (used, unused)
    }};
}

impl Cpu {
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        let (used, unused) =
            features!(is_x86_feature_detected: "sse2" "sse4.2" "avx" "avx2" "fma" "f16c" "avx512f");
        #[cfg(target_arch = "aarch64")]
        let (used, unused) = features!(is_aarch64_feature_detected: "neon" "fp16" "sve");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let (used, unused) = (Vec::new(), Vec::new());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let kernels = brevity::compress::instruction_set();
        Self { architecture: env::consts::ARCH, processors, kernels, used, unused }
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "brevity {}", self.version)?;
        writeln!(f, "transports")?;
        for Transport { name, available, note } in &self.transports {
            writeln!(f, "  {name:<6} {:<8} {note}", if *available { "found" } else { "missing" })?;
        }
        if let Some(Ucx { version, path }) = &self.ucx {
            writeln!(f, "ucx {version}, {}", path.display())?;
        }
        writeln!(f, "launcher")?;
        for LauncherFound { name, counts, rank } in &self.launchers {
            let rank =
                rank.map_or_else(|| "a rank that is no number".to_owned(), |rank| format!("rank {rank}"));
            writeln!(f, "  {name}: {rank}{}", if *counts { "" } else { " (around the one that counts)" })?;
        }
        if self.launchers.is_empty() {
            writeln!(f, "  none: this process is alone")?;
        }
        writeln!(
            f,
            "  pmix {:<8} {}",
            if self.pmix.available { "found" } else { "missing" },
            self.pmix.note
        )?;
        let Cpu { architecture, processors, kernels, used, unused } = &self.cpu;
        writeln!(f, "processor\n  {architecture}, {processors} processors for this process")?;
        writeln!(f, "  compression: {kernels}\n  the rest: {}, not used: {}", list(used), list(unused))?;
        writeln!(f, "host")?;
        for Finding { name, available, note } in &self.host {
            writeln!(f, "  {name:<12} {:<8} {note}", if *available { "ok" } else { "lacking" })?;
        }
        writeln!(f, "defaults")?;
        for Setting { name, value } in &self.defaults {
            writeln!(f, "  {name}: {value}")?;
        }
        writeln!(f, "environment")?;
        for Variable { name, value, meaning } in &self.environment {
            writeln!(f, "  {name}={value}  ({meaning})")?;
        }
        if self.environment.is_empty() {
            let names = VARIABLES.map(|(name, _)| name).join(", ");
            writeln!(f, "  none is set of {names}")?;
        }
        Ok(())
    }
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_shown() {
        let info = Info::collect(|name| (name == KEY || name == "RANK").then(|| "secret7".to_owned()));
        let rank =
            Variable { name: "RANK", value: "secret7".into(), meaning: "this rank, as torchrun says it" };
        assert_eq!(info.environment[1], rank);
        assert_eq!(info.environment[0].value, "(set, not shown)");
        assert_eq!(info.to_string().matches("secret7").count(), 1);
    }

    #[test]
    fn a_missing_transport_says_why() {
        let [ucx, tcp, ..]: [Transport; 4] = transports(Err("no UCX library")).try_into().unwrap();
        assert_eq!((ucx.available, ucx.note.as_str(), tcp.available), (false, "no UCX library", true));
        assert!(transports(Ok(()))[0].available);
    }

    #[test]
    fn what_keeps_ranks_from_reading_memory_is_named() {
        assert_eq!(tcp_note(None), "sockets, and shared memory inside a host");
        assert!(tcp_note(Some("kernel.yama.ptrace_scope=1, expected 0".into())).contains("(kernel.yama"));
    }

    #[test]
    fn the_baseline_of_the_architecture_is_used() {
        let cpu = Cpu::detect();
        assert!(cpu.used.iter().all(|name| !cpu.unused.contains(name)));
        if cfg!(target_arch = "x86_64") {
            assert!(cpu.used.contains(&"sse2"));
        }
    }
}
