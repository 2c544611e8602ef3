//! `ucx_perftest`: one pair of processes for each figure.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{Wire, find_program, printed};
use crate::order::{Order, WINDOW, What};
use crate::{Error, Result, processor};

const NAME: &str = "ucx_perftest";

/// How long a pair of processes may take for one figure.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);

/// An installed `ucx_perftest`.
#[derive(Clone, Debug)]
pub struct Perftest {
    program: PathBuf,
    /// The version that it reports.
    pub version: String,
}

impl Perftest {
    /// The one in `PATH`, if there is one.
    #[must_use]
    pub fn find() -> Option<Self> {
        let program = find_program(Path::new(NAME))?;
        let info =
            find_program(Path::new("ucx_info")).map(|info| printed(&info, &["-v"])).unwrap_or_default();
        let version = info.lines().next().map_or("unknown", |line| line.trim_start_matches(['#', ' ']));
        Some(Self { program, version: version.to_owned() })
    }

    /// Microseconds of a message over `wire`: the mean of all iterations, which it reports as "overall".
    ///
    /// # Errors
    /// If it fails, prints something other than figures, or takes longer than a minute.
    pub fn measure(&self, wire: Wire, order: &Order) -> Result<f64> {
        let test = match order.what {
            What::Latency => "tag_lat",
            What::Bandwidth => "tag_bw",
            What::Put => "ucp_put_lat",
            What::Get => "ucp_get",
            what => return Err(Error::Arguments(format!("{NAME} does not measure {what}"))),
        };
        let port = free_port()?;
        let mut server = Process::start(&mut self.command(wire, port, 0))?;
        wait_for_listener(port, &mut server)?;
        let mut command = self.command(wire, port, 1);
        command.args(["127.0.0.1", "-f", "-v", "-t", test, "-s", &order.bytes.to_string()]);
        command.args(["-n", &order.iterations.to_string(), "-w", &order.warmup.to_string()]);
        if order.what == What::Bandwidth {
            command.args(["-O", &WINDOW.to_string()]);
        }
        let output = Process::start(&mut command)?.wait()?;
        server.wait()?;
        let text = String::from_utf8_lossy(&output.stdout);
        overall(&text).ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            Error::contestant(NAME, format!("no figures of {order} in {text:?} {said:?}"))
        })
    }

    fn command(&self, wire: Wire, port: u16, place: usize) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("UCX_TLS", wire.ucx_tls())
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .args(["-p", &port.to_string()]);
        let processors = processor::allowed();
        if let Some(processor) = processors.get(place).filter(|_| processors.len() > 1) {
            command.args(["-c", &processor.to_string()]);
        }
        command
    }
}

/// The mean over all iterations, in microseconds, from what `ucx_perftest -v` prints.
fn overall(text: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("iterations,"));
    let column = lines.next()?.split(',').position(|name| name == "overall_lat")?;
    let figure: f64 = lines.next()?.split(',').nth(column)?.parse().ok()?;
    (figure > 0.0).then_some(figure)
}

/// A port that is free at the moment.
fn free_port() -> Result<u16> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::system("can't find a free port"))?;
    Ok(listener.local_addr().map_err(Error::system("can't find a free port"))?.port())
}

/// Waits until a process listens on `port`. A trial connection would count as the client's.
fn wait_for_listener(port: u16, server: &mut Process) -> Result<()> {
    let start = Instant::now();
    while !["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().any(|table| listens(table, port)) {
        if start.elapsed() > PATIENCE || server.has_ended() {
            return Err(Error::contestant(NAME, "the server does not listen"));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Whether a table of sockets has one that listens on `port`.
fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    let sockets = fs::read_to_string(table).unwrap_or_default();
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&suffix)) && words.nth(1) == Some("0A")
    })
}

/// A process that is killed if it is dropped before its end.
struct Process(Option<Child>);

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Self(Some(command.spawn().map_err(Error::system(format!("can't start {NAME}")))?)))
    }

    fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Waits for its end. Its output fits a pipe.
    fn wait(mut self) -> Result<Output> {
        let start = Instant::now();
        while !self.has_ended() {
            if start.elapsed() > PATIENCE {
                return Err(Error::contestant(NAME, format!("it did not end in {PATIENCE:?}")));
            }
            thread::sleep(LOOK);
        }
        let child = self.0.take().ok_or_else(|| Error::contestant(NAME, "it has ended"))?;
        child.wait_with_output().map_err(Error::system(format!("can't read what {NAME} prints")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overall_mean_is_read() {
        let head = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr";
        assert_eq!(
            overall(&format!("{head}\n10000,3.434,3.597,3.598,2.12,2.12,278010,278010\n")),
            Some(3.598)
        );
        assert_eq!(overall(&format!("a warning\n{head}\n10,1,2,3,4,5,6,7\n")), Some(3.0));
        for text in
            [String::new(), head.to_owned(), format!("{head}\n"), format!("{head}\n1,2,3,0.0,5,6,7,8\n")]
        {
            assert_eq!(overall(&text), None, "{text}");
        }
    }

    #[test]
    fn a_listener_is_seen_without_calling_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens("/proc/self/net/tcp", port));
        drop(listener);
        assert!(!listens("/proc/self/net/tcp", port));
    }
}
