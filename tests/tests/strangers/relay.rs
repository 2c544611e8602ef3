//! A relay between a rank and rank 0.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What happens to bytes before they are relayed.
type Touch = Box<dyn FnMut(&[u8]) + Send>;

/// Relays the connections to `door`, and records what the first caller sends first.
pub fn record(door: TcpListener, master: u16) -> Arc<Mutex<Vec<u8>>> {
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&recorded);
    relay(door, master, move || {
        let record = Arc::clone(&record);
        [Box::new(move |bytes: &[u8]| record.lock().unwrap().extend(bytes)), Box::new(|_: &[u8]| {})]
    });
    recorded
}

/// Relays the connections to `door`; what rank 0 sends waits as long as `is_held` returns true.
pub fn hold(door: TcpListener, master: u16, is_held: impl Fn() -> bool + Clone + Send + 'static) {
    relay(door, master, move || {
        let is_held = is_held.clone();
        let wait = move |_: &[u8]| {
            while is_held() {
                thread::sleep(Duration::from_millis(2));
            }
        };
        [Box::new(|_: &[u8]| {}), Box::new(wait)]
    });
}

/// Relays both directions.
fn relay(door: TcpListener, master: u16, touch: impl Fn() -> [Touch; 2] + Send + 'static) {
    thread::spawn(move || {
        for caller in door.incoming() {
            let (caller, answerer) = (caller.unwrap(), until_connected(master));
            let (back_from, back_to) = (answerer.try_clone().unwrap(), caller.try_clone().unwrap());
            let [said, heard] = touch();
            thread::spawn(move || pass(back_from, back_to, heard));
            thread::spawn(move || pass(caller, answerer, said));
        }
    });
}

fn until_connected(port: u16) -> TcpStream {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut touch: Touch) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        touch(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
