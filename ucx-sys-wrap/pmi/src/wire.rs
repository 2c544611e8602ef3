//! PMI-1 on a descriptor: lines of `name=value` pairs, one request and its response at a time.
//!
//! | request | response |
//! | --- | --- |
//! | `cmd=init pmi_version=1 pmi_subversion=1` | `cmd=response_to_init rc=0 ...` |
//! | `cmd=get_maxes` | `cmd=maxes kvsname_max=.. keylen_max=.. vallen_max=..` |
//! | `cmd=get_my_kvsname` | `cmd=my_kvsname kvsname=..` |
//! | `cmd=put kvsname=.. key=.. value=..` | `cmd=put_result rc=0 ...` |
//! | `cmd=barrier_in` | `cmd=barrier_out`, once all ranks have sent it |
//! | `cmd=get kvsname=.. key=..` | `cmd=get_result rc=0 value=..` |
//! | `cmd=finalize` | `cmd=finalize_ack` |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::{Error, KEY, Result, check, is_plain};

/// A longer line is refused.
const MAX_LINE_BYTES: usize = 4096;

/// Gives rank 0's `text` to all ranks of the job, through the launcher that handed down descriptor number
/// `descriptor`.
///
/// Rank 0 passes the text, the others `None`. Blocks until all ranks of the job have called it, at most until
/// `deadline`. Afterwards the launcher considers this process done with PMI: an MPI library can't use the
/// descriptor any more. Costs seven requests to the launcher on this host.
///
/// # Errors
/// [`Error::System`] when there is no such descriptor, [`Error::Late`] at the deadline, [`Error::Closed`]
/// when the launcher goes away, [`Error::Refused`] and [`Error::Malformed`] by its responses.
pub fn share(descriptor: i32, text: Option<&str>, deadline: Instant) -> Result<String> {
    let socket = adopt(descriptor)?;
    share_over(&socket, text, deadline)
}

/// As [`share`], over an open socket.
///
/// # Errors
/// As [`share`].
pub fn share_over(socket: &impl AsFd, text: Option<&str>, deadline: Instant) -> Result<String> {
    text.map_or(Ok(()), check)?;
    let mut wire = Wire { socket: socket.as_fd(), inbox: Vec::new(), deadline };
    wire.ask("init", "cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?.accepted()?;
    wire.make_sure_that_it_fits(text)?;
    let space = wire.ask("get_my_kvsname", "cmd=get_my_kvsname", "my_kvsname")?.text("kvsname")?;
    if let Some(text) = text {
        wire.ask("put", &format!("cmd=put kvsname={space} key={KEY} value={text}"), "put_result")?
            .accepted()?;
    }
    wire.ask("barrier", "cmd=barrier_in", "barrier_out")?.accepted()?;
    let found = match text {
        Some(text) => text.to_owned(),
        None => {
            let answer = wire.ask("get", &format!("cmd=get kvsname={space} key={KEY}"), "get_result")?;
            answer.accepted()?;
            answer.text("value")?
        }
    };
    wire.ask("finalize", "cmd=finalize", "finalize_ack")?;
    Ok(found)
}

/// A duplicate of the descriptor that the launcher has left open.
fn adopt(descriptor: i32) -> Result<OwnedFd> {
    if descriptor < 0 {
        return Err(Error::system("the launcher's descriptor", Errno::BADF));
    }
    // SAFETY: the launcher guarantees, by a variable of this process's environment, that the descriptor is
    // open. If it is not, duplicating it fails, which is the only use of the number.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().map_err(|error| Error::system("the launcher's descriptor", error))
}

/// A connection with the launcher.
struct Wire<'a> {
    socket: BorrowedFd<'a>,
    /// The bytes that have arrived and belong to no answer yet.
    inbox: Vec<u8>,
    deadline: Instant,
}

/// A line from the launcher.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    call: &'static str,
    line: String,
}

impl Wire<'_> {
    /// Sends a request and waits for its answer, whose command must be `expected`.
    fn ask(&mut self, call: &'static str, question: &str, expected: &'static str) -> Result<Answer> {
        self.send(call, format!("{question}\n").as_bytes())?;
        let answer = Answer { call, line: self.receive(call)? };
        if answer.pair("cmd") == Some(expected) { Ok(answer) } else { Err(answer.malformed(expected)) }
    }

    /// Refuses a text or key that is too long for the launcher.
    fn make_sure_that_it_fits(&mut self, text: Option<&str>) -> Result<()> {
        let maxes = self.ask("get_maxes", "cmd=get_maxes", "maxes")?;
        for (name, length) in [("keylen_max", KEY.len()), ("vallen_max", text.map_or(0, str::len))] {
            // The lengths include a closing zero.
            if maxes.number(name)? <= length {
                return Err(maxes.malformed("longer keys and values"));
            }
        }
        Ok(())
    }

    fn send(&mut self, call: &'static str, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match send(self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => self.wait(call, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed { call }),
                Err(error) => return Err(Error::system(call, error)),
            }
        }
        Ok(())
    }

    /// The next line, without its newline.
    fn receive(&mut self, call: &'static str) -> Result<String> {
        let mut space = [0; 1024];
        loop {
            if let Some(end) = self.inbox.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.inbox.drain(..=end).take(end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.inbox.len() >= MAX_LINE_BYTES {
                return Err(malformed(call, &String::from_utf8_lossy(&self.inbox), "a shorter line"));
            }
            match recv(self.socket, &mut space, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Error::Closed { call }),
                Ok((count, _)) => self.inbox.extend_from_slice(&space[..count]),
                Err(Errno::AGAIN) => self.wait(call, PollFlags::IN)?,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(Error::Closed { call }),
                Err(error) => return Err(Error::system(call, error)),
            }
        }
    }

    /// Sleeps until the socket is ready.
    fn wait(&self, call: &'static str, flags: PollFlags) -> Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Late { call });
        }
        // At least a millisecond, so that it does not spin at the end.
        let left = left.max(Duration::from_millis(1));
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(self.socket, flags)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system(call, error)),
        }
    }
}

impl Answer {
    /// The value of a name, up to the next blank.
    fn pair(&self, name: &str) -> Option<&str> {
        self.line
            .split_ascii_whitespace()
            .find_map(|pair| pair.split_once('=').filter(|pair| pair.0 == name)?.1.into())
    }

    /// Refuses an answer with an error. Not every launcher confirms success.
    fn accepted(&self) -> Result<()> {
        match self.pair("rc") {
            None | Some("0") => Ok(()),
            Some(code) => {
                let reason =
                    self.pair("msg").map_or_else(|| format!("status {code}"), |told| cut(told).to_owned());
                Err(Error::Refused { call: self.call, reason })
            }
        }
    }

    fn text(&self, name: &'static str) -> Result<String> {
        let value = self.pair(name).filter(|value| is_plain(value));
        value.map(str::to_owned).ok_or_else(|| self.malformed(name))
    }

    fn number(&self, name: &'static str) -> Result<usize> {
        self.pair(name).and_then(|value| value.parse().ok()).ok_or_else(|| self.malformed(name))
    }

    fn malformed(&self, expected: &'static str) -> Error {
        malformed(self.call, &self.line, expected)
    }
}

fn malformed(call: &'static str, found: &str, expected: &'static str) -> Error {
    Error::Malformed { call, found: cut(found).to_owned(), expected }
}

/// The part of an answer that messages show.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(120)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}
