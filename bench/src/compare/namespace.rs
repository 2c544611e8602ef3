//! A network of one's own, where loopback's congestion control is the same for all that is compared.
//!
//! Some kernels control congestion with bbr, which holds a stream over loopback to a part of what reno gives
//! it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::job::own_program;
use crate::{Error, Result};

/// Says to the program that it runs in its own network.
const INSIDE: &str = "BREVITY_BENCH_NAMESPACE";

/// Sets up the network and becomes what follows. UCX reads the interfaces from `/sys`, which shows those of
/// the network that it was mounted in.
const SET_UP: &str = "mount -t sysfs sysfs /sys && ip link set lo up \
    && echo reno >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"";

/// Ways to get there: as root, and as anybody where that is allowed.
const WAYS: [&[&str]; 2] = [&["--net", "--mount"], &["--user", "--map-root-user", "--net", "--mount"]];

/// Starts this program again in a network of its own, which ends with it, and does not come back then. Comes
/// back inside, and outside when the system does not allow it, which it says on standard error.
///
/// # Errors
/// When this program can't be started again.
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
    // Comes back only when it fails.
    let error = command.env(INSIDE, "1").exec();
    Err(Error::system("can't enter a network namespace")(error))
}

/// The congestion control that sockets get here.
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
