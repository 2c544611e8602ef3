//! Two ranks of each transport.

use std::net::{TcpListener, TcpStream};
use std::sync::{Barrier, Mutex};

use ucx_sys_wrap::local;
use ucx_sys_wrap::shm::Neighbourhood;
use ucx_sys_wrap::tcp::Tcp;
use ucx_sys_wrap::ucx::{self, Options, Ucx};
use ucx_sys_wrap::{Rank, Transport};

pub type World = Vec<Box<dyn Transport>>;

pub fn local() -> World {
    local::world(2).into_iter().map(boxed).collect()
}

/// Over sockets.
pub fn tcp() -> World {
    sockets().into_iter().map(boxed).collect()
}

/// Over memory that the ranks share; `may_read` lets them read each other's.
pub fn shared_memory(may_read: bool) -> World {
    let mut ranks = sockets();
    for (rank, neighbourhood) in ranks.iter_mut().zip(Neighbourhood::in_process(2).unwrap()) {
        rank.share_memory(&neighbourhood, may_read).unwrap();
    }
    ranks.into_iter().map(boxed).collect()
}

fn boxed(rank: impl Transport + 'static) -> Box<dyn Transport> {
    Box::new(rank)
}

fn sockets() -> Vec<Tcp> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (answerer, _) = listener.accept().unwrap();
    let rows = [vec![None, Some(answerer)], vec![Some(caller), None]];
    (0..).zip(rows).map(|(rank, row)| Tcp::new(Rank(rank), 2, row).unwrap()).collect()
}

/// Nothing where there is no UCX, which is a failure where `BREVITY_REQUIRE_UCX` is 1.
pub fn ucx(lanes: &str) -> Option<World> {
    if let Err(why) = ucx::available() {
        assert!(std::env::var_os("BREVITY_REQUIRE_UCX").is_none_or(|value| value != "1"), "{why}");
        println!("skipped: no UCX ({why})");
        return None;
    }
    let options = Options { settings: vec![("TLS".into(), lanes.into())], ..Options::default() };
    let (cards, met) = (Mutex::new(vec![Vec::new(); 2]), Barrier::new(2));
    let connect = |rank: Rank| {
        let mut exchange = |own: &[u8]| {
            cards.lock().unwrap()[rank.index()] = own.to_vec();
            met.wait();
            Ok(cards.lock().unwrap().clone())
        };
        Ucx::connect(rank, 2, &mut exchange, &options).unwrap()
    };
    std::thread::scope(|threads| {
        let connect = &connect;
        let ranks = [0, 1].map(|rank| threads.spawn(move || connect(Rank(rank))));
        Some(ranks.into_iter().map(|rank| boxed(rank.join().unwrap())).collect())
    })
}
