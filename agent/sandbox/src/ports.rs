//! Free ports on the loopback address.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
};

/// A port that the kernel calls free, held until [`Held::release`] so that nobody is told the same in between.
#[derive(Debug)]
pub(crate) struct Held {
    listener: TcpListener,
    number: u16,
}

impl Held {
    pub(crate) fn find() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let number = listener.local_addr()?.port();
        Ok(Self { listener, number })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// To be called right before the start of the program that shall have it. Somebody else can still be quicker: that
    /// program then ends with "address already in use", and is started again on another port.
    pub(crate) fn release(self) -> u16 {
        drop(self.listener);
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn held_ports_differ_and_a_released_one_can_be_bound() {
        let held: Vec<_> = (0..50).map(|_| Held::find().unwrap()).collect();
        let numbers: BTreeSet<_> = held.iter().map(Held::number).collect();
        assert_eq!(numbers.len(), 50);
        let binds = |number: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
        assert!(!held.iter().any(|held| binds(held.number())));
        // Somebody else may be quicker with one of them, not with all. And a program that another test starts has all of them
        // between fork and exec.
        let released: Vec<_> = held.into_iter().map(Held::release).collect();
        let binds_later = |_| {
            std::thread::sleep(Duration::from_millis(20));
            released.iter().any(|number| binds(*number))
        };
        assert!((0..500).any(binds_later));
    }
}
