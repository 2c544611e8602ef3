//! Two hosts on one machine: network namespaces that can reach each other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use brevity_testing::is_required;

/// The interface between the two hosts.
pub const LINK: &str = "brevity0";

/// An interface on each host that leads nowhere.
pub const OTHER: &str = "nowhere1";

const PORT: u16 = 4000;

/// Two hosts; gone when this is dropped.
pub struct Network {
    names: [String; 2],
    folder: tempfile::TempDir,
}

impl Network {
    /// `None` if namespaces can't be made.
    ///
    /// # Panics
    /// If they can't be made although `BREVITY_REQUIRE_NAMESPACES` is 1.
    #[must_use]
    pub fn new() -> Option<Self> {
        // Tests may be threads of one process.
        static NETWORKS: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NETWORKS.fetch_add(1, Ordering::Relaxed));
        let names = [0, 1].map(|host| format!("brevity-host-{process}-{number}-{host}"));
        let network = Self { names, folder: tempfile::tempdir().unwrap() };
        let made = network.names.iter().all(|name| ip(&["netns", "add", name])) && network.connect();
        if made {
            return Some(network);
        }
        assert!(!is_required("BREVITY_REQUIRE_NAMESPACES"), "no network namespaces can be made here");
        println!("skipped: no network namespaces can be made here");
        None
    }

    /// Drops all packets from now on; neither side is notified.
    ///
    /// # Panics
    /// If the link can't be cut.
    pub fn cut(&self) {
        assert!(ip(&["-n", &self.names[0], "link", "set", LINK, "down"]));
    }

    /// A command that runs on a host, without the variables of a launcher of this test.
    #[must_use]
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], program]);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("BREVITY_")) {
                command.env_remove(&name);
            }
        }
        command
    }

    /// A host's address on the link, of IP version 4 or 6.
    #[must_use]
    pub fn address(&self, host: usize, version: u8) -> String {
        if version == 4 { format!("10.78.0.{}", host + 1) } else { format!("fd78::{}", host + 1) }
    }

    /// The address at which rank 0 waits on the first host.
    #[must_use]
    pub fn master(&self, version: u8) -> String {
        let address = self.address(0, version);
        if version == 4 { format!("{address}:{PORT}") } else { format!("[{address}]:{PORT}") }
    }

    /// An address for rank 0 on a host's interface that leads nowhere.
    #[must_use]
    pub fn dead_end(&self, host: usize) -> String {
        format!("{}:{PORT}", nowhere(host))
    }

    /// Unused addresses on the second host's link: packets to them vanish.
    ///
    /// # Panics
    /// If the system refuses.
    #[must_use]
    pub fn black_holes(&self) -> [String; 2] {
        for address in ["10.78.0.9", "fd78::9"] {
            let words =
                ["-n", &self.names[1], "neigh", "add", address, "lladdr", "02:00:00:00:00:09", "dev", LINK];
            assert!(ip(&words), "{words:?}");
        }
        [format!("10.78.0.9:{PORT}"), format!("[fd78::9]:{PORT}")]
    }

    /// The addresses on which any process of a host listens, as the kernel writes them.
    ///
    /// # Panics
    /// If the system refuses.
    #[must_use]
    pub fn listening(&self, host: usize) -> Vec<String> {
        let mut command = self.command(host, "cat");
        let output = command.args(["/proc/net/tcp", "/proc/net/tcp6"]).output().unwrap();
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let listening = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.get(3) == Some(&"0A")).then(|| words[1].to_owned())
        };
        lines.lines().filter_map(listening).collect()
    }

    /// A program that runs commands on the host with the given address, like `ssh`.
    ///
    /// # Panics
    /// If the system refuses.
    #[must_use]
    pub fn remote_shell(&self) -> String {
        let path = self.folder.path().join("shell");
        let [first, second] = [0, 1].map(|host| self.address(host, 4));
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\ncase $1 in\n{first}) host={};;\n\
             {second}) host={};;\n*) exit 255;;\nesac\nshift\nexec ip netns exec $host sh -c \"$*\"\n",
            self.names[0], self.names[1]
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn connect(&self) -> bool {
        let [a, b] = &self.names;
        ip(&["-n", a, "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", b])
            && (0..2).all(|host| self.configure(host))
            && self.names.iter().all(|name| carries(name))
    }

    fn configure(&self, host: usize) -> bool {
        let name = &self.names[host];
        let [four, six] = [4, 6].map(|version| self.address(host, version));
        let nowhere = format!("{}/32", nowhere(host));
        // Without nodad, an IPv6 address can be used only after a second.
        ip(&["-n", name, "addr", "add", &format!("{four}/24"), "dev", LINK])
            && ip(&["-n", name, "addr", "add", &format!("{six}/64"), "dev", LINK, "nodad"])
            && ip(&["-n", name, "link", "add", OTHER, "type", "veth", "peer", "name", "nowhere2"])
            && ip(&["-n", name, "addr", "add", &nowhere, "dev", OTHER])
            && ["lo", LINK, OTHER, "nowhere2"]
                .iter()
                .all(|interface| ip(&["-n", name, "link", "set", interface, "up"]))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

/// A host's address on [`OTHER`].
fn nowhere(host: usize) -> String {
    format!("198.51.100.{}", host + 1)
}

/// Whether the link is up.
fn carries(name: &str) -> bool {
    (0..1000).any(|_| {
        let shown = Command::new("ip").args(["-n", name, "link", "show", LINK]).output();
        let is_up = shown.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("state UP"));
        if !is_up {
            sleep(Duration::from_millis(5));
        }
        is_up
    })
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
