//! `agentctl top`: clusters, bursts, phases and traffic, as they change.
//!
//! [`scene`] is what is shown, made of two readings; [`draw`] puts it onto a terminal. Both are pure.

pub(crate) mod draw;
pub(crate) mod scene;

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, poll, read};
use tokio::sync::mpsc;
use tributary::admin::{self, FederationStatus};
use tributary::clock::{Clock, SystemClock};

use self::scene::{Scene, Tab};
use crate::cli::{Target, Top};
use crate::connect::CachedAgent;
use crate::error::{Failure, Result};

/// How often keys are looked for by the thread that reads them.
const KEYS: Duration = Duration::from_millis(200);

/// Runs `agentctl top`.
pub(crate) async fn run(target: &Target, top: &Top) -> Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::new("failed to show a live view: this is no terminal")
            .hint("`agentctl status --watch` prints what changes"));
    }
    // What cannot work is said before the screen is taken.
    let mut agent = CachedAgent::new(target);
    let mut scene = Scene::new(target.namespace.clone());
    scene.read(agent.read::<FederationStatus>(admin::STATUS).await?, SystemClock::start().wall());
    let mut keys = keys();
    let mut terminal = ratatui::init();
    let outcome = async {
        loop {
            // Keys are heeded while an answer is waited for, too.
            let mut look = pin!(async {
                tokio::time::sleep(top.interval).await;
                agent.read::<FederationStatus>(admin::STATUS).await
            });
            let found = loop {
                terminal.draw(|frame| draw::draw(frame, &scene))?;
                tokio::select! {
                    key = keys.recv() => match key {
                        Some(Key::End) | None => return Ok(()),
                        Some(Key::Next) => scene.turn_to(scene.tab.next()),
                        Some(Key::Down) => scene.offset = scene.offset.saturating_add(1).min(scene.last_row()),
                        Some(Key::Up) => scene.offset = scene.offset.saturating_sub(1),
                        Some(Key::Drawn) => {}
                        Some(Key::Tab(tab)) => scene.turn_to(tab),
                    },
                    found = &mut look => break found,
                }
            };
            match found {
                Ok(status) => scene.read(status, SystemClock::start().wall()),
                // The leader may have changed: the last picture stays meanwhile.
                Err(failure) => scene.trouble = Some(failure.line()),
            }
        }
    };
    let outcome: Result<()> = outcome.await;
    ratatui::restore();
    outcome
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    End,
    Next,
    Up,
    Down,
    Tab(Tab),
    /// The terminal has another size.
    Drawn,
}

/// Keys, read by a thread of its own: it ends with whoever listens.
fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            if !poll(KEYS).unwrap_or(false) {
                continue;
            }
            let key = match read() {
                Ok(Event::Key(key)) => meaning(key),
                Ok(Event::Resize(..)) => Some(Key::Drawn),
                Ok(_) => None,
                Err(_) => Some(Key::End),
            };
            if let Some(key) = key
                && sender.blocking_send(key).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn meaning(key: KeyEvent) -> Option<Key> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::End),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::End),
        KeyCode::Tab => Some(Key::Next),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        KeyCode::Char('1') => Some(Key::Tab(Tab::Bursts)),
        KeyCode::Char('2') => Some(Key::Tab(Tab::MiniClusters)),
        KeyCode::Char('3') => Some(Key::Tab(Tab::Hosted)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_last_line_says() {
        let of = |code, modifiers| meaning(KeyEvent::new(code, modifiers));
        assert_eq!(of(KeyCode::Char('q'), KeyModifiers::NONE), Some(Key::End));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::End));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(of(KeyCode::Char('2'), KeyModifiers::NONE), Some(Key::Tab(Tab::MiniClusters)));
        assert_eq!(of(KeyCode::Tab, KeyModifiers::NONE), Some(Key::Next));
    }
}
