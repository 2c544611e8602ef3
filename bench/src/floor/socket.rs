//! Bare non-blocking sockets, polled: a ping-pong and a stream.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, hint, thread};

use brevity::launch;

use crate::memory::PageAligned;
use crate::order::{Order, Over, What};
use crate::seat::Line;
use crate::{Error, Result, processor};

/// How long to wait for the other end of a pair.
const MEETING: Duration = Duration::from_secs(20);

/// What to do when nothing can be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Try again at once.
    Poll,
    /// Yield to another process first.
    Yield,
}

/// One end of a pair of `ranks` processes: `rank` and `rank ^ 1` meet through a file beside the conductor's
/// socket.
///
/// # Errors
/// If the pair does not meet, or a socket or the line fails.
pub fn serve(socket: &Path, (rank, ranks): (u32, u32), patience: Patience) -> Result<()> {
    launch::die_with_parent();
    processor::pin_rank(rank, ranks);
    let stream = meet(&socket.with_extension(format!("pair{}", rank / 2)), rank.is_multiple_of(2))?;
    let mut end = End { stream, patience, first: rank.is_multiple_of(2) };
    Line::dial(socket, rank)?.serve(|order| end.obey(order))
}

fn meet(place: &PathBuf, first: bool) -> Result<TcpStream> {
    let failed = || Error::system("a pair of bare sockets does not meet");
    let stream = if first {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
        let port = listener.local_addr().map_err(failed())?.port();
        // Written to a separate file for this pair alone and then renamed, so that the other end never reads
        // half a number or the number of another pair.
        let written = place.with_extension(format!("new{}", place.extension().unwrap_or_default().display()));
        fs::write(&written, port.to_string()).map_err(failed())?;
        fs::rename(&written, place).map_err(failed())?;
        listener.accept().map_err(failed())?.0
    } else {
        let start = Instant::now();
        let port: u16 = loop {
            match fs::read_to_string(place) {
                Ok(port) => break port.parse().unwrap_or(0),
                Err(error) if start.elapsed() > MEETING => return Err(failed()(error)),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(failed())?
    };
    stream.set_nodelay(true).map_err(failed())?;
    stream.set_nonblocking(true).map_err(failed())?;
    Ok(stream)
}

struct End {
    stream: TcpStream,
    patience: Patience,
    first: bool,
}

impl End {
    fn obey(&mut self, order: &Order) -> Result<Vec<f64>> {
        // Separate memory for sending and receiving, as on Brevity's side.
        let memory = |byte| PageAligned::new(order.bytes, move |_| byte);
        let (out, mut bytes) = (memory(1), memory(2));
        let times = match order.what {
            What::Latency => {
                self.ping_pong(&out, &mut bytes, order.warmup + 1)?;
                order
                    .batches()
                    .map(|count| Ok(self.timed_ping_pong(&out, &mut bytes, count)? / 2.0))
                    .collect::<Result<_>>()?
            }
            What::Bandwidth => {
                let mut places: Vec<PageAligned> =
                    (0..Over::Sockets.depth(order.bytes)).map(|_| memory(2)).collect();
                self.stream(&out, &mut places, order.warmup + 1)?;
                let start = Instant::now();
                self.stream(&out, &mut places, order.iterations)?;
                vec![start.elapsed().as_secs_f64() * 1e6 / order.iterations as f64]
            }
            what => return Err(Error::Arguments(format!("{what} has no floor of sockets"))),
        };
        Ok(if self.first { times } else { Vec::new() })
    }

    fn timed_ping_pong(&mut self, out: &[u8], bytes: &mut [u8], count: usize) -> Result<f64> {
        let start = Instant::now();
        self.ping_pong(out, bytes, count)?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
    }

    fn ping_pong(&mut self, out: &[u8], bytes: &mut [u8], count: usize) -> Result<()> {
        for _ in 0..count {
            if self.first {
                self.write(out)?;
                self.read(bytes)?;
            } else {
                self.read(bytes)?;
                self.write(out)?;
            }
        }
        Ok(())
    }

    /// Sends messages to the second end, which answers at the end that all have arrived. They are received
    /// into as many places, in turn, as a receiver of Brevity has posted.
    fn stream(&mut self, out: &[u8], places: &mut [PageAligned], count: usize) -> Result<()> {
        let mut end = [0; 1];
        if self.first {
            (0..count).try_for_each(|_| self.write(out))?;
            return self.read(&mut end);
        }
        for number in 0..count {
            let place = number % places.len();
            self.read(&mut places[place])?;
        }
        self.write(&end)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.stream.write(&bytes[done..]) {
                Ok(count) => done += count,
                Err(error) => self.wait(error)?,
            }
        }
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.stream.read(&mut bytes[done..]) {
                Ok(0) => return Err(Error::contestant("bare sockets", "the other end has gone")),
                Ok(count) => done += count,
                Err(error) => self.wait(error)?,
            }
        }
        Ok(())
    }

    fn wait(&self, error: std::io::Error) -> Result<()> {
        match (error.kind(), self.patience) {
            (ErrorKind::WouldBlock, Patience::Poll) => hint::spin_loop(),
            (ErrorKind::WouldBlock, Patience::Yield) => thread::yield_now(),
            (ErrorKind::Interrupted, _) => {}
            _ => return Err(Error::system("a bare socket fails")(error)),
        }
        Ok(())
    }
}
