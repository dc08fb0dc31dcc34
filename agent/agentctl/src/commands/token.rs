//! `agentctl token create|list|delete`: join tokens, kept as Secrets, so that RBAC decides who may make them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use schemars::JsonSchema;
use serde::Serialize;
use tributary::api::cluster_card::ClusterCard;
use tributary::api::join_token::{self, JoinTokenRecord, secret_name};
use tributary::clock::{Clock, Rng, SystemClock, SystemRng};
use tributary::federation::enrol::token::generate_id;
use tributary::federation::enrol::{JoinToken, TokenSecret};
use tributary::federation::identity::TrustBundle;

use super::peering;
use crate::cli::{Target, Token, TokenCreate};
use crate::document::{self, Document};
use crate::error::{Failure, Result, failed};
use crate::output::age;
use crate::{kubernetes, output};

/// Join tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenList {
    /// By id.
    items: Vec<TokenRow>,
}

impl Document for TokenList {
    const KIND: &'static str = "TokenList";

    fn nothing(&self) -> Option<&'static str> {
        self.items.is_empty().then_some("no tokens; make one with agentctl token create")
    }
}

/// A join token, without what lets anybody in.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenRow {
    /// Its id, which is no secret.
    id: String,
    /// Until when it can be used.
    expires: Timestamp,
    /// By how many clusters it can be used.
    uses: u32,
    /// The clusters that have used it.
    used_by: Vec<String>,
    /// Namespaces in which whoever joins may place bursts.
    imports: Vec<String>,
}

impl TokenRow {
    fn of(record: &JoinTokenRecord) -> Self {
        Self {
            id: record.id.clone(),
            expires: record.expires,
            uses: record.uses,
            used_by: record.used_by.keys().cloned().collect(),
            imports: record.import(None).map(|import| import.namespaces).unwrap_or_default(),
        }
    }
}

/// Runs `agentctl token …`.
pub(crate) async fn run(target: &Target, command: Token) -> Result<()> {
    let now = SystemClock::start().wall();
    let client = kubernetes::client(target).await?;
    let namespace = &target.agent_namespace;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match command {
        Token::Create(create) => {
            let card = peering::card(&client, namespace).await?;
            let (token, record) = tokens(&create, &card, now, &mut SystemRng)?;
            secrets.create(&PostParams::default(), &record.secret(namespace)).await.map_err(failed(
                format!("failed to write Secret {namespace}/{}", secret_name(&record.id)),
                "may you create Secrets in the agent's namespace? Whoever may, decides who joins",
            ))?;
            output::remark(&format!(
                "token {} of cluster {}: valid until {}, for {}\nmake the other cluster's context the current \
                 one, and join with: agentctl join TOKEN",
                record.id,
                card.cluster,
                record.expires.strftime("%Y-%m-%d %H:%M:%S UTC"),
                if record.uses == 1 { "one cluster".to_owned() } else { format!("{} clusters", record.uses) },
            ));
            output::print(&format!("{}\n", *token.text()))
        }
        Token::List(list) => {
            let found = secrets.list(&of_tokens()).await.map_err(failed(
                format!("failed to list the join tokens in namespace {namespace}"),
                "may you list Secrets there?",
            ))?;
            let items = found.items.iter().map(|secret| TokenRow::of(&JoinTokenRecord::read(secret))).collect();
            output::print(&document::list(target, list.output, &TokenList { items }, |list, _| {
                table(&list.items, now)
            })?)
        }
        Token::Delete(delete) => {
            for id in &delete.ids {
                secrets.delete(&secret_name(id), &DeleteParams::default()).await.map_err(|error| {
                    let hint = "the tokens there are: `agentctl token list`";
                    match &error {
                        kube::Error::Api(status) if status.code == 404 => {
                            Failure::new(format!("there is no token {id}")).hint(hint)
                        }
                        _ => Failure::new(format!("failed to delete the token {id}")).because(error).hint(hint),
                    }
                })?;
                output::print(&format!("token {id} deleted\n"))?;
            }
            Ok(())
        }
    }
}

fn of_tokens() -> ListParams {
    ListParams::default().fields(&format!("type={}", join_token::TYPE))
}

/// A new token: what is handed over, and what is kept.
fn tokens(
    create: &TokenCreate,
    card: &ClusterCard,
    now: Timestamp,
    rng: &mut dyn Rng,
) -> Result<(JoinToken, JoinTokenRecord)> {
    let what = "failed to make a join token";
    super::peer::check_limits(None, &create.import, what)?;
    let endpoints = if create.endpoints.is_empty() { card.join_endpoints.clone() } else { create.endpoints.clone() };
    if endpoints.is_empty() {
        return Err(Failure::new(what).because("nobody knows where the other cluster reaches this one").hint(
            "name it with --join-endpoint HOST:PORT, or set federation.advertise (and federation.join.advertise, if the \
             port differs) in the agent's configuration",
        ));
    }
    let port = |address: &String| address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if let Some(wrong) = endpoints.iter().find(|address| !port(address)) {
        let failure = Failure::new(what).because(format!("{wrong:?} is not host:port"));
        return Err(failure.hint("write --join-endpoint 203.0.113.7:30956"));
    }
    if create.expires.is_zero() {
        return Err(Failure::new(what).because("it would have ended already").hint("write --expires 15m"));
    }
    let expires = SignedDuration::try_from(create.expires).ok().and_then(|life| now.checked_add(life).ok());
    let expires = expires
        .ok_or_else(|| Failure::new(what).because("it would end after the end of time").hint("write --expires 15m"))?;
    let bundle = TrustBundle::from_pem(card.trust_bundle.as_bytes())
        .map_err(failed(what, "the agent's log says what is wrong with its identity"))?;
    if !create.import.import_only.is_empty() {
        let failure = Failure::new(what).because("a token takes no namespace away from a peer that joins again");
        return Err(
            failure.hint("write --import; later `agentctl peer add PEER --import-only NAMESPACE` takes others away")
        );
    }
    let (id, secret) = (generate_id(rng), TokenSecret::generate(rng));
    let record = JoinTokenRecord {
        id: id.clone(),
        secret_hash: secret.hash(),
        expires,
        uses: create.uses,
        used_by: [].into(),
        written: [].into(),
        import: create.import.fields(&[]),
        export: Some(super::peering::export(create.hide_status)),
        labels: super::peer::labels(&create.labels)?,
    };
    let token = JoinToken {
        id,
        secret,
        cluster: card.cluster.as_str().into(),
        trust_domain: card.trust_domain.clone(),
        endpoints,
        authorities: bundle.fingerprints().clone(),
        expires,
    };
    Ok((token, record))
}

fn table(rows: &[TokenRow], now: Timestamp) -> String {
    let listed = |words: &[String]| output::or_dash(Some(words.join(",")).filter(|words| !words.is_empty()));
    let row = |row: &TokenRow| {
        [
            row.id.clone(),
            if row.expires <= now { "expired".to_owned() } else { age(Some(now), row.expires) },
            format!("{}/{}", row.used_by.len(), row.uses),
            listed(&row.used_by),
            listed(&row.imports),
        ]
    };
    output::table(["ID", "EXPIRES IN", "USES", "USED BY", "IMPORTS"], rows.iter().map(row))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tributary::clock::SeededRng;
    use tributary::federation::identity::Authority;

    use super::*;
    use crate::cli::{Cli, Command};

    fn now() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    fn card() -> ClusterCard {
        ClusterCard {
            cluster: "east".into(),
            cluster_uid: "1-2".into(),
            trust_domain: None,
            endpoints: vec!["203.0.113.7:30946".into()],
            join_endpoints: vec!["203.0.113.7:30956".into()],
            awaited_service: None,
            trust_bundle: Authority::create("east", now()).unwrap().certificate().to_owned(),
            authority: None,
        }
    }

    fn made(line: &str, card: &ClusterCard) -> Result<(JoinToken, JoinTokenRecord)> {
        let cli = Cli::try_parse_from(format!("agentctl token create {line}").split_whitespace()).unwrap();
        let Command::Token(Token::Create(create)) = cli.command else { panic!("{line}") };
        tokens(&create, card, now(), &mut SeededRng::new(1))
    }

    #[test]
    fn what_is_kept_does_not_let_anybody_in() {
        let (token, record) = made("--import hpc --max-brokers 4 -l region=eu --uses 2 --expires 1h", &card()).unwrap();
        assert_eq!(
            (record.id.as_str(), record.secret_hash.as_str()),
            (token.id.as_str(), token.secret.hash().as_str())
        );
        assert_eq!((record.uses, record.expires), (2, now() + SignedDuration::from_hours(1)));
        assert_eq!(record.import(None).unwrap().max_brokers, Some(4));
        assert_eq!(token.endpoints, card().join_endpoints);
        let read: JoinToken = token.text().parse().unwrap();
        assert_eq!(read, token);
        let plain = made("", &card()).unwrap().1;
        assert_eq!((plain.uses, plain.expires, plain.import), (1, now() + SignedDuration::from_mins(15), None));
        let fewer = made("--import-only hpc", &card()).unwrap_err().to_string();
        assert!(fewer.contains("takes no namespace away"), "{fewer}");
        let limits = made("--max-brokers 4", &card()).unwrap_err().to_string();
        assert!(limits.contains("limits are stated, and no namespace"), "{limits}");
    }

    #[test]
    fn what_cannot_be_a_token_is_refused_with_a_hint() {
        let nowhere = ClusterCard { join_endpoints: Vec::new(), ..card() };
        let failures = [
            made("", &nowhere),
            made("--join-endpoint nowhere", &card()),
            made("--expires 0s", &card()),
            made("-l region", &card()),
        ];
        let texts: Vec<String> = failures.map(|failure| failure.unwrap_err().to_string()).into();
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
    }

    #[test]
    fn the_list_says_who_has_used_what() {
        let (_, fresh) = made("--import hpc,lab", &card()).unwrap();
        let used = JoinTokenRecord {
            id: "used2345".into(),
            used_by: [("west".to_owned(), "d".to_owned())].into(),
            import: None,
            ..fresh.clone()
        };
        let old = JoinTokenRecord { id: "old23456".into(), expires: now(), ..fresh.clone() };
        insta::assert_snapshot!(table(&[fresh, used, old].map(|record| TokenRow::of(&record)), now()));
    }
}
