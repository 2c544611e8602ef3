//! A network namespace for the run, so that loopback has the same congestion control for all sides.
//!
//! Some kernels use bbr by default, which limits a stream over loopback to a fraction of reno's bandwidth.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::job::own_program;
use crate::{Error, Result};

/// Tells the program that it runs in its own network namespace.
const INSIDE: &str = "BREVITY_BENCH_NAMESPACE";

/// Sets up the network, then replaces itself by the program that follows. UCX reads the interfaces from
/// `/sys`, which shows those of the namespace in which it was mounted.
const SET_UP: &str = "mount -t sysfs sysfs /sys && ip link set lo up \
    && echo reno >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"";

/// How to enter a namespace: as root, or as any user where the system allows it.
const WAYS: [&[&str]; 2] = [&["--net", "--mount"], &["--user", "--map-root-user", "--net", "--mount"]];

/// Starts this program again in its own network namespace, which ends with it; the call does not return then.
/// Returns inside the namespace. Also returns, with a message on standard error, if the system does not allow
/// namespaces.
///
/// # Errors
/// If this program can't be started again.
pub fn enter() -> Result<()> {
    if env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let Some(way) = WAYS.into_iter().find(|way| works(way)) else {
        eprintln!(
            "no network namespace (needs unshare and ip): tcp is compared under {}",
            congestion_control()
        );
        return Ok(());
    };
    let program = own_program()?;
    let mut command = Command::new("unshare");
    command.args(way).args(["--", "sh", "-c", SET_UP, "sh"]).arg(program).args(env::args_os().skip(1));
    // Returns only if it fails.
    let error = command.env(INSIDE, "1").exec();
    Err(Error::system("can't enter a network namespace")(error))
}

/// The congestion control of sockets here.
#[must_use]
pub fn congestion_control() -> String {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

fn works(way: &[&str]) -> bool {
    let mut command = Command::new("unshare");
    command.args(way).args(["--", "sh", "-c", SET_UP, "sh", "true"]);
    let tried = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}
