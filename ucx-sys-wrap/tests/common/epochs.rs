//! Cases of epochs: messages of an earlier context of a number are dropped, whenever they come.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Comm, OnLoss, Port, Send};
use ucx_sys_wrap::{Rank, Result};

use super::{block, envelope, meet, pattern, within};

const A: Rank = Rank(0);
const B: Rank = Rank(1);

/// The context whose number is used twice, and its epochs.
const CONTEXT: u16 = 1;
const OLD: u8 = 1;
const NEW: u8 = 2;

/// Small and large messages, each many times: more than the credit of any transport.
const LENGTHS: [(usize, usize); 4] = [(16, 300), (3000, 800), (40_000, 60), (2 << 20, 4)];

fn open(port: &Port, epoch: u8) {
    port.open_context(CONTEXT, epoch, [A, B].into(), OnLoss::Close);
}

/// A sends the old messages: all of the tags that the new ones have.
fn send_old<'comm, 'env>(comm: &'comm Comm<'env>) -> Vec<Send<'comm, 'env, Vec<u8>>> {
    let rounds =
        (0..).zip(LENGTHS).flat_map(|(round, (length, count))| (0..count).map(move |_| (round, length)));
    rounds.map(|(round, length)| comm.send(B, within(CONTEXT, OLD, A, round), vec![0xee; length])).collect()
}

/// The new messages.
async fn send_new(comm: &Comm<'_>) -> Result<()> {
    for (round, (length, _)) in (0..).zip(LENGTHS) {
        comm.send(B, within(CONTEXT, NEW, A, round), pattern(1, length)).await?;
    }
    Ok(())
}

async fn recv_new(comm: &Comm<'_>) {
    for (round, (length, _)) in (0..).zip(LENGTHS) {
        let (bytes, arrival) = comm.recv(A, within(CONTEXT, NEW, A, round), vec![0u8; length]).await.unwrap();
        assert!(arrival.lengths[0] == length && bytes == pattern(1, length), "{length} bytes");
    }
}

/// Both have forgotten the old context, and use the new one.
fn use_new(port: &Arc<Port>) {
    assert_eq!((port.failure(0), port.failure(CONTEXT)), (None, None));
    block(
        port,
        async |comm| if port.rank() == A { send_new(comm).await.unwrap() } else { recv_new(comm).await },
    );
}

/// B waits in the new context for what A then sends in both.
pub fn late_and_expected(port: &Arc<Port>) {
    open(port, if port.rank() == A { OLD } else { NEW });
    block(port, async |comm| {
        if port.rank() == B {
            let expect =
                |(round, (length, _))| comm.recv(A, within(CONTEXT, NEW, A, round), vec![0u8; length]);
            let recvs: Vec<_> = (0..).zip(LENGTHS).map(expect).collect();
            comm.send(A, envelope(B, 1, 0), ()).await.unwrap();
            for (recv, (length, _)) in recvs.into_iter().zip(LENGTHS) {
                assert!(recv.await.unwrap().0 == pattern(1, length), "{length} bytes");
            }
            return;
        }
        comm.recv(B, envelope(B, 1, 0), ()).await.unwrap();
        for send in send_old(comm) {
            send.await.unwrap();
        }
        port.forget_context(CONTEXT);
        open(port, NEW);
        send_new(comm).await.unwrap();
    });
    use_new(port);
}

/// B has opened the new context, and waits for nothing when the old messages come.
pub fn late_and_unexpected(port: &Arc<Port>) {
    open(port, if port.rank() == A { OLD } else { NEW });
    meet(port);
    block(port, async |comm| {
        if port.rank() == B {
            comm.recv(A, envelope(A, 1, 0), ()).await.unwrap();
            return recv_new(comm).await;
        }
        let old = send_old(comm);
        comm.send(B, envelope(A, 1, 0), ()).await.unwrap();
        let new: Vec<_> = (0..)
            .zip(LENGTHS)
            .map(|(round, (length, _))| comm.send(B, within(CONTEXT, NEW, A, round), pattern(1, length)))
            .collect();
        for send in old.into_iter().chain(new) {
            send.await.unwrap();
        }
        port.forget_context(CONTEXT);
        open(port, NEW);
    });
    use_new(port);
}

/// B has the old messages before it forgets their context.
pub fn early(port: &Arc<Port>) {
    open(port, OLD);
    block(port, async |comm| {
        if port.rank() == B {
            comm.recv(A, envelope(A, 1, 0), ()).await.unwrap();
            port.forget_context(CONTEXT);
            open(port, NEW);
            comm.send(A, envelope(B, 1, 0), ()).await.unwrap();
            return;
        }
        let old = send_old(comm);
        comm.send(B, envelope(A, 1, 0), ()).await.unwrap();
        comm.recv(B, envelope(B, 1, 0), ()).await.unwrap();
        drop(old);
    });
    if port.rank() == A {
        port.forget_context(CONTEXT);
        open(port, NEW);
    }
    use_new(port);
}
