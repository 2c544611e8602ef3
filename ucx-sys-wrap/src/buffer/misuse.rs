//! Programs that must not compile, because each lends memory that others could access during the operation.
//!
//! Each follows a program that compiles and differs in this one respect. `ci/test.sh` checks the error codes.
//!
//! # A local of the scope's own body
//!
//! Memory must outlive the scope, which ends its operations after its body is gone.
//!
//! ```no_run
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let mut place = [0u8; 8];
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     std::mem::forget(comm.recv(peer, envelope, &mut place[..]));
//! });
//! # }
//! ```
//!
//! ```compile_fail,E0597
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     let mut place = [0u8; 8];
//!     std::mem::forget(comm.recv(peer, envelope, &mut place[..]));
//! });
//! # }
//! ```
//!
//! # Memory that is written while it is sent
//!
//! ```no_run
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let mut bytes = [0u8; 8];
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     comm.send(peer, envelope, &bytes[..]).await
//! }).unwrap();
//! bytes[0] = 1;
//! # }
//! ```
//!
//! ```compile_fail,E0506
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let mut bytes = [0u8; 8];
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     let sending = comm.send(peer, envelope, &bytes[..]);
//!     bytes[0] = 1;
//!     sending.await
//! }).unwrap();
//! # }
//! ```
//!
//! # Memory that is written after its operation was forgotten
//!
//! A forgotten operation is in flight until the scope ends.
//!
//! ```no_run
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let mut place = [0u8; 8];
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     std::mem::forget(comm.recv(peer, envelope, &mut place[..]));
//! });
//! place[0] = 1;
//! # }
//! ```
//!
//! ```compile_fail,E0506
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let mut place = [0u8; 8];
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     std::mem::forget(comm.recv(peer, envelope, &mut place[..]));
//!     place[0] = 1;
//! });
//! # }
//! ```
//!
//! # One buffer for two messages
//!
//! ```no_run
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let mut places = [[0u8; 8]; 2];
//! let [first, second] = &mut places;
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     let one = comm.recv(peer, envelope, &mut first[..]);
//!     let receives = (one, comm.recv(peer, envelope, &mut second[..]));
//!     receives.0.await.unwrap();
//!     receives.1.await.unwrap();
//! });
//! # }
//! ```
//!
//! ```compile_fail,E0499
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let mut place = [0u8; 8];
//! scope(port, |comm| drop(comm.port().progress()), async |comm| {
//!     let receives = (comm.recv(peer, envelope, &mut place[..]), comm.recv(peer, envelope, &mut place[..]));
//!     receives.0.await.unwrap();
//!     receives.1.await.unwrap();
//! });
//! # }
//! ```
//!
//! # Memory that is freed while it is lent
//!
//! ```no_run
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let bytes = vec![0u8; 8];
//! let port = port.clone();
//! scope(&port, |comm| drop(comm.port().progress()), async |comm| {
//!     comm.send(peer, envelope, &bytes[..]).await
//! }).unwrap();
//! drop(bytes);
//! # }
//! ```
//!
//! ```compile_fail,E0505
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! let bytes = vec![0u8; 8];
//! let lent = &bytes[..];
//! let port = port.clone();
//! scope(&port, |comm| drop(comm.port().progress()), async |comm| {
//!     let sending = comm.send(peer, envelope, lent);
//!     drop(bytes);
//!     sending.await
//! }).unwrap();
//! # }
//! ```
//!
//! # A task that borrows what it does not own
//!
//! A task may be dropped or leaked at any time, so its operations use only its own buffers.
//!
//! ```no_run
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! drop(Task::new(port, vec![0u8; 8], move |comm, place| {
//!     Box::pin(async move { comm.recv(peer, envelope, &mut place[..]).await.map(drop) })
//! }));
//! # }
//! ```
//!
//! ```compile_fail,E0597
//! # use ucx_sys_wrap::{buffer::*, *}; fn f(port: &std::sync::Arc<Port>, peer: Rank, envelope: Envelope) {
//! drop(Task::new(port, (), move |comm, ()| {
//!     Box::pin(async move {
//!         let mut place = vec![0u8; 8];
//!         comm.recv(peer, envelope, &mut place[..]).await.map(drop)
//!     })
//! }));
//! # }
//! ```
