//! What the system says about a process, and what a test may do to it.

use std::collections::HashMap;
use std::fs;
use std::process::{Command, Stdio};

/// A process, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u32);

impl Process {
    /// This process.
    #[must_use]
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// The most memory that it had so far, in KiB; 0 if that is not known any more.
    #[must_use]
    pub fn peak_kib(self) -> u64 {
        self.status("VmHWM:")
    }

    /// The memory that it has, in KiB; 0 if that is not known any more.
    #[must_use]
    pub fn resident_kib(self) -> u64 {
        self.status("VmRSS:")
    }

    /// How many descriptors it has open.
    #[must_use]
    pub fn descriptors(self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0)).map_or(0, Iterator::count)
    }

    /// Whether it exists and is more than an entry that nobody has reaped.
    #[must_use]
    pub fn is_running(self) -> bool {
        self.state().is_some_and(|state| state != 'Z' && state != 'X')
    }

    /// Whether a signal has stopped it.
    #[must_use]
    pub fn is_stopped(self) -> bool {
        self.state() == Some('T')
    }

    /// Sends a signal, as "KILL"; a process that has ended is none the worse for it.
    pub fn signal(self, signal: &str) {
        let words = [format!("-{signal}"), self.0.to_string()];
        let _ = Command::new("kill").args(words).stderr(Stdio::null()).status();
    }

    fn state(self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    }

    fn status(self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

/// The IPv4 ports that a process listens on, in the order of its descriptors.
#[must_use]
pub fn listening_ports(process: Process) -> Vec<u16> {
    let table = fs::read_to_string(format!("/proc/{}/net/tcp", process.0)).unwrap_or_default();
    let listening = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = u16::from_str_radix(words.get(1)?.split(':').nth(1)?, 16).ok()?;
        (*words.get(3)? == "0A").then(|| Some((words.get(9)?.to_string(), port)))?
    };
    let ports: HashMap<String, u16> = table.lines().skip(1).filter_map(listening).collect();
    let Ok(descriptors) = fs::read_dir(format!("/proc/{}/fd", process.0)) else { return Vec::new() };
    let port = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        let port = ports.get(link.strip_prefix("socket:[")?.strip_suffix(']')?)?;
        Some((entry.file_name().to_string_lossy().parse::<u32>().ok()?, *port))
    };
    let mut own: Vec<(u32, u16)> = descriptors.filter_map(|entry| port(entry.ok()?)).collect();
    own.sort_unstable();
    own.into_iter().map(|(_, port)| port).collect()
}
